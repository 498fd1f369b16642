"""Runs the doctor over operators of other packages, and writes docs/custom-operators.md.

    python tools/custom_operators [--check] [--results FOLDER] [PACKAGE...]

pip installs the packages into the Python that runs this. `--check` runs the programs of the
findings only, and fails if one prints something else than the page says.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from page import HEAD, Finding, findings, overview, printed, section, shown
from tried import PACKAGES, Package

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "custom-operators.md"


def install(package: Package) -> None:
    """Installs the package; where there is none for this Python, `examine` says so."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, package.requirement, *package.needs], check=False)


def results(package: Package, folder: Path) -> dict[str, Any]:
    """What the doctor finds in the package, in a process of its own."""
    file = folder / f"{package.name}.json"
    if not file.exists():
        install(package)
        command = [sys.executable, str(HERE / "examine.py"), package.name, str(file)]
        subprocess.run(command, check=True)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def written(folder: Path) -> str:
    """The page."""
    import torch

    every = {package.name: results(package, folder) for package in PACKAGES}
    own: dict[str, list[Finding]] = {}
    for finding in findings():
        own.setdefault(finding.package, []).append(finding)
    python = ".".join(map(str, sys.version_info[:2]))
    origin = f"torch {torch.__version__} and Python {python} on {date.today()}"
    counts = Counter({name: len(some) for name, some in own.items()})
    parts = [HEAD.read_text() + overview(every, counts, origin)]
    for name, found in every.items():
        if text := section(name, found):
            parts += [text, *(shown(one, printed(one)) for one in own.get(name, ()))]
    return "\n\n".join(parts) + "\n"


def stale(page: str) -> list[str]:
    """The findings that the page does not show as they are now."""
    return [one.title for one in findings() if shown(one, printed(one)) not in page]


def main() -> int:
    """Writes the page, or checks its programs; returns 1 if one prints something else."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="run the programs of the page only")
    parser.add_argument(
        "--results", type=Path, help="a folder that keeps what was found in each package"
    )
    given = parser.parse_args()
    if given.check:
        for package in PACKAGES:
            install(package)
        titles = stale(PAGE.read_text(encoding="utf-8"))
        print("\n".join(f"the page is out of date: {title}" for title in titles))
        return 1 if titles else 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.results or Path(temporary)
        folder.mkdir(exist_ok=True)
        PAGE.write_text(written(folder), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
