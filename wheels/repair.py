"""Gives a kernel wheel the manylinux tag its symbols allow.

`auditwheel repair` would graft torch's libraries into the wheel; they are left out, because the
torch that is already loaded provides them. The schema library lies in the wheel and stays there.

    python wheels/repair.py OUTPUT_DIRECTORY WHEEL...
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Repairs every wheel named after the output directory; returns the exit status."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    output, *wheels = arguments
    # auditwheel packs the modes of the folders it makes.
    os.umask(0o022)
    excluded = ["--exclude", "libtorch*.so", "--exclude", "libc10*.so"]
    command = [sys.executable, "-m", "auditwheel", "repair", *excluded, "--wheel-dir", output]
    return max(subprocess.run([*command, wheel], check=False).returncode for wheel in wheels)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
