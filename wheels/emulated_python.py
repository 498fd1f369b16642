"""Makes a virtual environment for 64-bit Arm that runs on any processor, by QEMU's user mode.

    python wheels/emulated_python.py FOLDER

Debian's own Python for arm64 is unpacked, not installed: no root, no change to the machine. What is
left is FOLDER/bin/python, a Python like any other (`pip --python FOLDER/bin/python install ...`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# torch brings neither.
PACKAGES = ("python3", "libstdc++6")


def unpack(packages: Sequence[str], root: Path, work: Path) -> None:
    """Unpacks Debian packages for arm64 and all they depend on into `root`.

    apt gets a state of its own: to the machine's, these packages would be foreign.
    """
    archives = work / "cache" / "archives"
    for folder in (work / "lists" / "partial", archives / "partial", root):
        folder.mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "Dir::State": work,
        "Dir::State::Lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*apt, "update"], check=True)
    download = ("install", "--download-only", "--no-install-recommends", "--yes")
    subprocess.run([*apt, *download, *packages], check=True, stdout=subprocess.DEVNULL)
    for archive in archives.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)


def main(arguments: Sequence[str]) -> int:
    """Makes the environment anew; returns the exit status."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "debian"
    unpack(PACKAGES, root, folder / "apt")
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
