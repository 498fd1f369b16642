"""The one place that asks how much memory this process and this machine use."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

# psutil says what is used now. Linux itself keeps the peak, and forgets it when told to.
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


def reset_peak() -> bool:
    """Gives free memory back and forgets the peak; False if this system keeps it.

    Raises:
        ImportError: psutil is not installed.
    """
    gc.collect()
    # An allocator that was told to keep freed memory would count it as used.
    trim = getattr(_psutil(), "heap_trim", None)  # not with every C library
    if trim is not None:
        trim()
    try:
        _CLEAR_REFS.write_text(_FORGET_PEAK)
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """The peak of the resident memory of this process, in bytes.

    It is that since the last `reset_peak`, or of the whole process where this returned False.

    Raises:
        ImportError: psutil is not installed, and the system is Windows.
    """
    if _STATUS.exists():
        lines = _STATUS.read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    if sys.platform == "win32":
        return int(_psutil().Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """The resident memory of this process now, in bytes.

    Raises:
        ImportError: psutil is not installed.
    """
    return int(_psutil().Process().memory_info().rss)


def available_bytes() -> int:
    """The memory of this machine that is free or can be freed without swapping, in bytes.

    Raises:
        ImportError: psutil is not installed.
    """
    return int(_psutil().virtual_memory().available)


def _psutil() -> Any:
    try:
        import psutil
    except ImportError as error:
        raise ImportError("fusewheel needs psutil to measure memory: pip install psutil") from error
    return psutil
