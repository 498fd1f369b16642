"""Whether `fusewheel.attention` is faster than PyTorch's attention on a CPU.

The numbers are tokens: the smaller of the numbers of queries and keys. They were measured on an
Intel Xeon with AVX-512 and AMX, with one thread, and held to AVX2, before the operator had kernels
for AMX. docs/compiler.md has the table.
"""

from __future__ import annotations

import math

import torch

from fusewheel.compiler.cost import processor
from fusewheel.compiler.cost.traffic import known
from fusewheel.compiler.ir.metadata import Size

# From so many tokens on the operator is faster,
# * than products, a softmax and a mask that materialise all scores;
_MATERIALISED = 256
# * than PyTorch's kernel, if a mask hides keys by their positions, which the operator skips;
_SKIPPED = 512
# * than PyTorch's backward in half precision.
_HALF_TRAINING = 64
# Up to so many tokens it is so where PyTorch has fast products of bfloat16, or reads the mask.
_SHORT = 256
# PyTorch's bfloat16 with AVX-512 is slower only than a window of so small a part of so many keys.
_WINDOW_PART, _WINDOW_KEYS = 8, 1024
_NEVER = math.inf


def loss(
    queries: Size,
    keys: Size,
    window: tuple[int, int],
    dtype: torch.dtype,
    *,
    training: bool,
    masked: bool,
    materialised: bool,
) -> str | None:
    """Why PyTorch's attention is at least as fast; None if it is slower.

    Args:
        queries: the number of queries.
        keys: the number of keys.
        window: what the operator skips: the arguments `left` and `right`.
        dtype: of queries, keys and values.
        training: whether there is a backward.
        masked: whether the operator reads a mask.
        materialised: whether PyTorch would materialise all scores.
    """
    tokens = min(known(queries) or 0, known(keys) or 0)
    if tokens == 1:
        return "a single query, or a single key, is left to PyTorch's attention"
    least, most = _range(keys, window, dtype, training, masked, materialised)
    if least <= tokens <= most:
        return None
    direction = "forward and backward" if training else "forward"
    what = f"{dtype}, {direction}".removeprefix("torch.")
    if least == _NEVER:
        return f"{what}: PyTorch's attention is as fast with such a mask on this processor"
    side = f"below {least} tokens" if tokens < least else f"above {most} tokens"
    return f"{tokens} tokens, {what}: PyTorch's attention is faster {side}"


def _range(
    keys: Size,
    window: tuple[int, int],
    dtype: torch.dtype,
    training: bool,
    masked: bool,
    materialised: bool,
) -> tuple[float, float]:
    """The smallest and the largest number of tokens for which the operator is faster."""
    if materialised:
        return _MATERIALISED, math.inf
    left, right = window
    fast = dtype == torch.bfloat16 and processor.has_avx512()
    if training and dtype != torch.float32:
        long = left < 0 if fast else masked and processor.has_avx512()
        return _HALF_TRAINING, _SHORT if long or (fast and masked) else math.inf
    if masked or max(window) < 0:
        return _NEVER, _NEVER
    if not fast:
        return _SKIPPED, math.inf
    narrow = min(window) >= 0 and _WINDOW_PART * (left + right + 1) <= (known(keys) or 0)
    return (_WINDOW_KEYS, math.inf) if narrow else (_NEVER, _NEVER)
