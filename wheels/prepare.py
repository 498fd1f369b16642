"""Installs what a kernel package builds with, inside a release container.

    python wheels/prepare.py packages/fusewheel-cpu

Of torch only the headers are needed, so its dependencies (gigabytes of them) stay out.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]


def main(package: str) -> None:
    """Runs pip for the build requirements of `package` and for the project's torch."""
    project = tomllib.loads((Path(package) / "pyproject.toml").read_text())
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["fusewheel"]
    pip = [sys.executable, "-m", "pip", "install"]
    subprocess.run([*pip, "cmake", "ninja", *project["build-system"]["requires"]], check=True)
    subprocess.run([*pip, "--no-deps", settings["torch"]], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
