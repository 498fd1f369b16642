"""Restricts all libraries of a process to the instructions of an older CPU."""

from __future__ import annotations

# Each library has its own variable and reads it once, so they are set before the process starts.
LEVELS: dict[str, dict[str, str]] = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3",
        "FUSEWHEEL_CPU_ISA": "v3",
    },
}


def limits(level: str | None) -> dict[str, str]:
    """The environment variables of a level; none without one."""
    return {} if level is None else LEVELS[level]
