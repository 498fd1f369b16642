"""Rotary position embedding in place"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.ops._checks import check_not_expanded
from fusewheel.ops.rotary._checks import check_rope
from fusewheel.ops.rotary.rope import (
    at_positions,
    bad_tables,
    cut_heads,
    rotate,
    samples,
)


def rope_(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, positions: Tensor | None = None
) -> Tensor:
    """Rotary position embedding of one tensor, in place. `fusewheel.rope` has the formula.

    It needs less memory than `rope`. Autograd treats it as an in-place operation on `x`. The
    gradient of `x` does not need the overwritten values. If `cos` or `sin` requires a gradient, a
    copy of `x` is made, because that gradient needs them.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).

    Args:
        x: queries or keys `[batch, heads, length, D]`; float32, bfloat16, float16 or float64. Any
            strides, if no two elements share memory.
        cos: cosines, as for `rope`.
        sin: sines, as for `rope`.
        interleaved: which elements make a pair, as for `rope`; default False.
        positions: the row of the tables for each token, as for `rope`; default None.

    Returns:
        `x`, rotated.

    Raises:
        RuntimeError: as for `rope`; also if `x` is expanded, or is a leaf that requires a gradient.
    """
    torch.ops.fusewheel.rope_(x, cos, sin, interleaved, positions)
    return x


def _reference(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, positions: Tensor | None
) -> None:
    # A copy, because gradients of the tables need it.
    cos, sin = at_positions(positions, cos, sin)
    x.copy_(rotate(x.clone(), cos, sin, interleaved))


def _fake(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, positions: Tensor | None) -> None:
    check_rope("rope_", (("x", x),), cos, sin, positions)
    check_not_expanded("rope_", ("x", x))


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    no_keys = grads[0][:, :0]
    grad, _ = torch.ops.fusewheel.rope_backward(grads[0], no_keys, *arguments[1:])
    return grad, None, None, None, None


def _samples(make: Make) -> Iterator[Arguments]:
    for q, _, *others in samples(make):
        yield q.detach(), *others


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x, last = make(2, 4, 5, 8), (make(5, 8), make(5, 8), False, None)
    yield BadInput((x.int(), *last), "x must be float32.*got int32")
    yield BadInput((x[0], *last), "x must have 4 dimensions")
    yield BadInput((x[:1].expand(2, 4, 5, 8), *last), "x must not be an expanded tensor")
    for *tables, positions, message in bad_tables(make, "x"):
        yield BadInput((x, *tables, False, positions), message)


OPERATORS = (
    Operator(
        name="rope_",
        reference=_reference,
        fake=_fake,
        backward=_backward,
        mutates=0,
        in_place=True,
        sharding=cut_heads(heads=1, outputs=0),
        samples=_samples,
        bad_inputs=_bad_inputs,
        function=rope_,
    ),
)
