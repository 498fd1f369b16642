"""CPU kernels of fusewheel: says where they are; `import fusewheel` loads them."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_NAMES = {"darwin": "libfusewheel_cpu.dylib", "win32": "fusewheel_cpu.dll"}

device = "cpu"
library = _HERE / _NAMES.get(sys.platform, "libfusewheel_cpu.so")
# What CMake's `find_package(fusewheel)` wants in CMAKE_PREFIX_PATH.
cmake_prefix_path = str(_HERE / "share" / "cmake")
facts: dict[str, str] = json.loads((_HERE / "build.json").read_text())


def unavailable() -> Exception | None:
    """Why these kernels cannot run here: a CPU is always there."""
    return None


def choices() -> dict[str, str]:
    """Which of several ways the kernels go, chosen by the processor or by environment variables.

    The keys are the variables that would make the same choices again, ``FUSEWHEEL_CPU_ISA`` for
    the level of instructions; docs/architecture.md describes them.

    Raises:
        ValueError: a variable has a value that it cannot have.
    """
    import fusewheel  # noqa: F401, loads the library, which needs torch before it

    function = ctypes.CDLL(str(library)).fusewheel_cpu_choices
    function.restype = ctypes.c_char_p
    text: str = function().decode()
    if not text.startswith("FUSEWHEEL_CPU_ISA="):
        raise ValueError(text)
    return dict(line.split("=") for line in text.splitlines())
