"""Makes a virtual environment for 64-bit Arm that runs on any processor, by QEMU's user mode.

    python wheels/emulated_python.py FOLDER

Debian's own Python for arm64 is unpacked, not installed: no root, no change to the machine. What is
left is FOLDER/bin/python, a Python like any other (`pip --python FOLDER/bin/python install ...`).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from debian import Debian

# torch brings neither.
PACKAGES = ("python3", "libstdc++6")


def main(arguments: Sequence[str]) -> int:
    """Makes the environment anew; returns the exit status."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "debian"
    Debian(folder / "apt", "arm64").unpack(PACKAGES, root)
    binaries = root / "usr" / "bin"
    (folder / "pyvenv.cfg").write_text(f"home = {binaries}\ninclude-system-site-packages = false\n")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    # -0: the name is what Python runs again in a child, and its folder says which environment.
    python.write_text(f'#!/bin/sh\nexec qemu-aarch64 -L {root} -0 "$0" {binaries}/python3 "$@"\n')
    python.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
