"""Loads a CPU wheel's libraries, throws and catches, on the oldest glibc that Debian still has.

    python wheels/old_glibc.py WHEEL FOLDER

That Debian's Python is older than any torch knows. It is enough to call torch's C interface
(probe.py), which is where exceptions are caught; torch's libraries come from the running Python.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pythons

SUITE = "oldoldstable"
PROBE = Path(__file__).with_name("probe.py")


def main(arguments: Sequence[str]) -> int:
    """Runs the probe; returns its exit status."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    wheel, folder = Path(arguments[0]), Path(arguments[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    python = pythons.unpack("python3", folder / "python", (SUITE,))
    zipfile.ZipFile(wheel).extractall(folder / "wheel")
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    libraries = Path(torch.origin).parent / "lib"
    probe = (str(python), str(PROBE), str(libraries), str(folder / "wheel" / "fusewheel_cpu"))
    return subprocess.run(probe, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
