"""What the project wants of a linear layer, by the format of its weight and the rows of x.

Meant for a CPU without AVX-512, where PyTorch has no fast bfloat16: see `--isa avx2`.
"""

from __future__ import annotations

from collections.abc import Mapping

FP32, BF16 = "F.linear fp32", "F.linear bf16"
READ = "read"


def goals(name: str, rows: int) -> dict[str, float]:
    """The least speed relative to each baseline; READ is a part of the read bandwidth."""
    if name in ("linear bf16", "linear fp32 x bf16"):
        if rows == 1:
            return {FP32: 2.0}
        if 4 <= rows <= 16:
            return {BF16: 4.0, FP32: 1.0}
        if rows >= 64:
            return {FP32: 0.9, BF16: 6.0}
    if name == "linear_int8" and rows == 1:
        return {FP32: 3.5}
    if name == "linear_int4" and rows == 1:
        return {FP32: 6.0, READ: 0.8}
    if name == "linear_int4 dynamic" and rows >= 64:
        return {FP32: 1.5}
    return {}


def judged(name: str, rows: int, reached: Mapping[str, float]) -> dict[str, bool]:
    """Each goal in words, and whether the speeds reached meet it."""
    return {
        _words(baseline, factor): reached[baseline] >= factor
        for baseline, factor in goals(name, rows).items()
    }


def _words(baseline: str, factor: float) -> str:
    return f"{factor:.0%} of read" if baseline == READ else f"{factor:g}x {baseline.split()[1]}"
