"""The peak resident memory of this process, since a chosen moment if the system supports that."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def reset_peak() -> bool:
    """Give free memory back and reset the peak; False if the system does not support that."""
    gc.collect()
    # The allocator was told to keep freed memory, which would count as used.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_bytes() -> int | None:
    """Peak resident memory since the last reset, or of the whole process; None if unknown."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def of_phases(
    run: Callable[[str], dict[str, Any]], phases: Sequence[str], long_s: float
) -> dict[str, Any]:
    """Run the phases; returns the peak, and the seconds of phases that took more than `long_s`."""
    steady = reset_peak()
    seconds = {phase: run(phase)["seconds"] for phase in phases}
    long = {phase: taken for phase, taken in seconds.items() if taken > long_s}
    return {"peak_bytes": peak_bytes(), "steady": steady, "long": long}
