"""Rotary position embedding in place"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._operator import Arguments, BadInput, Make, Operator
from fusewheel.ops.rope import at_positions, bad_tables, check_rope, cut_heads, rotate, samples


def rope_(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, positions: Tensor | None = None
) -> Tensor:
    """`rope` of one tensor, in place: autograd sees an in-place operation on `x`.

    It saves memory, and time where tensors are large; a call costs some microseconds more than one
    of `rope`. The gradient of `x` does not need what was overwritten. Where `cos` or `sin` requires
    a gradient a copy is made, which that one needs.

    Args:
        x: queries or keys `[batch, heads, length, D]`, any layout whose elements do not share
            memory.
        cos: as for `rope`.
        sin: likewise.
        interleaved: likewise.
        positions: likewise.

    Returns:
        `x`.

    Raises:
        RuntimeError: as `rope`; `x` is expanded, or a leaf that requires a gradient.
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
    check_rope("rope_", "x", x, cos, sin)


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
    yield BadInput((None, *last), r"x\b.*(None|NoneType)")
    if x.dtype == torch.float32:
        yield BadInput((x.to_sparse(), *last), "x must be a dense tensor")
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
