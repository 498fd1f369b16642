"""Adds a `py3-none` twin to every kernel wheel of a folder: the same binaries under another tag.

Free-threaded Python takes no abi3 wheel. The libraries use nothing of Python's, so it may have
them; other Pythons prefer the `cp39-abi3` wheel, which lies beside it.

    python wheels/retag.py FOLDER
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(folder: str) -> None:
    """Runs `wheel tags` on each `cp39-abi3` wheel; the original stays."""
    tags = ("--python-tag", "py3", "--abi-tag", "none")
    for wheel in sorted(Path(folder).glob("*-cp39-abi3-*.whl")):
        subprocess.run((sys.executable, "-m", "wheel", "tags", *tags, str(wheel)), check=True)


if __name__ == "__main__":
    main(sys.argv[1])
