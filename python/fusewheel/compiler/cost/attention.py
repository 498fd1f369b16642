"""Whether `fusewheel.attention` is faster than PyTorch's attention on a CPU.

The numbers are tokens: the smaller of the numbers of queries and keys. They were measured with one
thread and two: on an Intel Xeon with AVX-512 and AMX as it is, without AMX, and held to AVX2; on an
AMD EPYC with AVX-512 as it is, and held to AVX2. docs/compiler.md has the table.
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
# * than PyTorch's kernel, and its backward in float32;
_LEAST = 128
# * than PyTorch's kernel with a mask that both read, without a backward;
_MASKED = 512
# * than PyTorch's backward in half precision.
_HALF_TRAINING = 64
# On AMD's processors than PyTorch's kernel, whatever the mask and the dtype, in both directions.
_AMD = 64
# Without AMX, PyTorch's bfloat16 is slower only than a window of so small a part of so many keys.
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
    least = _least(keys, window, dtype, training, masked, materialised)
    if tokens >= least:
        return None
    direction = "forward and backward" if training else "forward"
    what = f"{dtype}, {direction}".removeprefix("torch.")
    if least == _NEVER:
        return f"{what}: PyTorch's attention is as fast on this processor"
    return f"{tokens} tokens, {what}: PyTorch's attention is faster below {least} tokens"


def _least(
    keys: Size,
    window: tuple[int, int],
    dtype: torch.dtype,
    training: bool,
    masked: bool,
    materialised: bool,
) -> float:
    """The smallest number of tokens for which the operator is faster."""
    if materialised:
        return _MATERIALISED
    if processor.maker() == processor.AMD:
        return _AMD
    half, hides = dtype != torch.float32, max(window) >= 0
    if training and half:
        return _HALF_TRAINING
    if dtype == torch.bfloat16 and processor.has_avx512() and not processor.has_amx():
        left, right = window
        narrow = min(window) >= 0 and _WINDOW_PART * (left + right + 1) <= (known(keys) or 0)
        return _WINDOW_KEYS if narrow and not masked else _NEVER
    if masked and not training:
        return _MASKED
    return _LEAST if hides or half or training else _NEVER
