"""Writes the bill of materials of a folder of wheels (CycloneDX 1.6): what is in them, by hash.

Of other people's work the kernel libraries contain torch's stable headers and, for CUDA, NVIDIA's
runtime and its headers of NVTX; all are compiled in, so no installed metadata names them.

    python wheels/sbom.py FOLDER    writes FOLDER/fusewheel.cdx.json
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Requirements of the build that end up inside a wheel.
COMPILED_IN = {
    "fusewheel_cpu": ("torch",),
    "fusewheel_cuda": ("torch", "nvidia-cuda-runtime", "nvidia-nvtx"),
}


def bill(wheels: list[Path]) -> dict[str, Any]:
    """The document: a component for each wheel, and one for each thing compiled into some."""
    pinned = dict(re.findall(r'"([a-z-]+)==([\w.]+)"', _requirements()))
    components, dependencies = [], []
    for wheel in sorted(wheels):
        package, version, *_ = wheel.name.split("-")
        inside = [f"pkg:pypi/{name}@{pinned[name]}" for name in COMPILED_IN.get(package, ())]
        components.append(
            {
                "type": "library",
                "bom-ref": wheel.name,
                "name": package.replace("_", "-"),
                "version": version,
                "purl": f"pkg:pypi/{package.replace('_', '-')}@{version}?file_name={wheel.name}",
                "licenses": [{"license": {"id": "BSD-3-Clause"}}],
                "hashes": [
                    {"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}
                ],
            }
        )
        dependencies.append({"ref": wheel.name, "dependsOn": inside})
    for purl in sorted({purl for entry in dependencies for purl in entry["dependsOn"]}):
        name, _, version = purl.removeprefix("pkg:pypi/").partition("@")
        component = {"type": "library", "bom-ref": purl, "name": name, "version": version}
        components.append({**component, "purl": purl})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": components,
        "dependencies": dependencies,
    }


def _requirements() -> str:
    """Where the pinned versions stand, as one text."""
    files = (ROOT / "pyproject.toml", ROOT / "packages" / "fusewheel-cuda" / "pyproject.toml")
    return "".join(file.read_text() for file in files)


def main(folder: str) -> None:
    """Writes the bill beside the wheels."""
    document = bill(list(Path(folder).glob("*.whl")))
    (Path(folder) / "fusewheel.cdx.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
