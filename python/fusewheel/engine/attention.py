"""Attention of one query of each head, as a function of Python."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fusewheel._torch.autograd import in_forward_mode
from fusewheel.engine.operators import step_letters
from fusewheel.engine.program import Number, Program, ProgramWriter

STEP = "engine::attention"
MASKED_STEP = "engine::masked_attention"


def can_attend() -> bool:
    """Whether the CPU kernels are loaded."""
    return step_letters(STEP) is not None


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """PyTorch's attention of one query, by the kernel of `fusewheel.attention_decode`.

    If the mask shows more than one run of keys to a sequence, PyTorch's kernel computes it.

    Args:
        q: ``[B, Hq, 1, D]``, on the CPU. With a mask also ``[B, Hkv, G, D]``: the G heads that
            share keys and values as queries of one head.
        k: ``[B, Hkv, L, D]`` with Hq a multiple of Hkv; dtype of `q`.
        v: ``[B, Hkv, L, Dv]``; dtype of `q`.
        mask: ``[B or 1, 1, 1, L]``, boolean: the keys that a sequence sees; default None for all.
        scale: factor of the scores; default None for ``D ** -0.5``.

    Returns:
        the shape of `q`, with Dv in the place of D.
    """
    if in_forward_mode():  # tangents have to follow
        return scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
    given = (q, k, v) if mask is None else (q, k, v, mask)
    result: Tensor = _program(q.dtype, mask is not None, scale)(*given)[0]
    return result


@functools.lru_cache(maxsize=64)
def _program(dtype: torch.dtype, masked: bool, scale: float | None) -> Program:
    """A program of one step."""
    writer = ProgramWriter()

    def numbers(kind: str, index: int) -> list[Number]:
        return [writer.number(kind, index, dim) for dim in range(4)]

    dtypes = [dtype] * 3 + [torch.bool] * masked
    given = [
        writer.input(own, numbers("size", i), numbers("stride", i)) for i, own in enumerate(dtypes)
    ]
    sizes = *numbers("size", 0)[:3], writer.number("size", 2, 3)
    row = writer.number("multiply", sizes[2], sizes[3])
    strides = writer.number("multiply", sizes[1], row), row, sizes[3], 1
    result = writer.result(dtype, sizes, strides)
    step = MASKED_STEP if masked else STEP
    writer.step(step, (*given, scale), (result,), "attention")
    return writer.finish([result])
