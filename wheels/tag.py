"""Refuses a release whose tag, version and changelog do not name one version.

    python wheels/tag.py v1.2.3

The tag must be `v` and the version of `python/fusewheel/_core/version.py`. `CHANGELOG.md` must have
a section of that version with a date, and `CITATION.cff` must name it. Packages in
`packages/examples/` that ask for one version of fusewheel must ask for this one. Each package must
say where its repository is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """What keeps a tag from being released."""
    text = (root / "python" / "fusewheel" / "_core" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    version = found[1]
    wrong = []
    if tag != f"v{version}":
        wrong.append(f"the tag must be v{version} (python/fusewheel/_core/version.py), got {tag}")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        wrong.append(f"CHANGELOG.md must have a section '## [{version}] - YYYY-MM-DD'")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    if f"\nversion: {version}\n" not in citation:
        wrong.append(f"CITATION.cff must say 'version: {version}'")
    for path in sorted(root.glob("packages/examples/*/pyproject.toml")):
        asked = set(re.findall(r'"fusewheel[a-z-]*==([^"]+)"', path.read_text(encoding="utf-8")))
        if asked - {version}:
            name = path.relative_to(root).as_posix()
            wrong.append(f"{name} must ask for fusewheel=={version}, got {sorted(asked)}")
    for path in sorted(root.glob("packages/fusewheel*/pyproject.toml")):
        if "\n[project.urls]\n" not in path.read_text(encoding="utf-8"):
            name = path.relative_to(root).as_posix()
            wrong.append(f"{name} must say in [project.urls] where the repository is")
    return wrong


def main(arguments: Sequence[str]) -> int:
    """Prints what is wrong; returns the exit status."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    wrong = problems(arguments[0])
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
