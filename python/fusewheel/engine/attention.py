"""Attention of one query of each head to all keys, as a function of Python."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fusewheel._torch.autograd import in_forward_mode
from fusewheel.engine.operators import step_letters
from fusewheel.engine.program import Number, Program, ProgramWriter

STEP = "engine::attention"


def can_attend() -> bool:
    """Whether the CPU kernels are loaded."""
    return step_letters(STEP) is not None


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """PyTorch's attention of one query without a mask, by `fusewheel.attention_decode`'s kernel.

    Args:
        q: ``[B, Hq, 1, D]``, on the CPU.
        k: ``[B, Hkv, L, D]`` with Hq a multiple of Hkv; dtype of `q`.
        v: ``[B, Hkv, L, Dv]``; dtype of `q`.
        scale: factor of the scores; default None for ``D ** -0.5``.

    Returns:
        ``[B, Hq, 1, Dv]``.
    """
    if in_forward_mode():  # tangents have to follow
        return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
    result: Tensor = _program(q.dtype, scale)(q, k, v)[0]
    return result


@functools.lru_cache(maxsize=64)
def _program(dtype: torch.dtype, scale: float | None) -> Program:
    """A program of one step."""
    writer = ProgramWriter()

    def numbers(kind: str, index: int) -> list[Number]:
        return [writer.number(kind, index, dim) for dim in range(4)]

    q, k, v = (writer.input(dtype, numbers("size", i), numbers("stride", i)) for i in range(3))
    sizes = *numbers("size", 0)[:3], writer.number("size", 2, 3)
    row = writer.number("multiply", sizes[2], sizes[3])
    strides = writer.number("multiply", sizes[1], row), row, sizes[3], 1
    result = writer.result(dtype, sizes, strides)
    writer.step(STEP, (q, k, v, scale), (result,), "attention")
    return writer.finish([result])
