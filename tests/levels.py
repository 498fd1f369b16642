"""Levels of instructions: those that a processor executes, and what holds PyTorch to them."""

from __future__ import annotations

OLDER_LEVELS = {
    "v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "baseline": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}
"""By the level's name: what holds PyTorch to it, by which the kernels are judged."""
NATIVE = "import fusewheel_cpu; print(fusewheel_cpu.choices()['FUSEWHEEL_CPU_ISA'])"
"""A program that prints the level that the CPU's kernels choose."""


def executable(native: str) -> dict[str, dict[str, str]]:
    """Levels that a processor executes, and what holds kernels and PyTorch to them.

    Args:
        native: the level that the kernels choose there.
    """
    older = list(OLDER_LEVELS)
    below = older[older.index(native) + 1 :] if native in older else older
    held = {level: {"FUSEWHEEL_CPU_ISA": level, **OLDER_LEVELS[level]} for level in below}
    return {native: {}} | held
