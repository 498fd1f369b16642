"""Rotary position embedding of queries and keys"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.promise import Argument
from fusewheel.dispatch.sharding import REPLICATE, Layout, Place, Rule, places
from fusewheel.ops._elementwise import empty_rows
from fusewheel.ops.rotary._checks import check_rope


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of queries and keys. It rotates pairs of elements of each head:
    `(a, b)` becomes `(a * cos - b * sin, b * cos + a * sin)`.

    The first `R` elements of a head are rotated, where `R` is the last dimension of `cos`; the
    others are copied (GPT-J, GPT-NeoX and Phi rotate a part). A pair is the elements `i` and
    `i + R / 2` ("rotate half", as in Llama), or `2 * i` and `2 * i + 1` if `interleaved` (GPT-J,
    GLM). Queries and keys may have different numbers of heads (grouped-query attention). bfloat16
    and float16 are computed in float32 and rounded once.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).

    Args:
        q: queries `[batch, heads, length, D]`; float32, bfloat16, float16 or float64. A transposed
            view is read without a copy.
        k: keys `[batch, key heads, length, D]`, with the dtype and device of `q`.
        cos: cosines `[length, R]`, `[1, length, R]` or `[batch, length, R]`, one for each element,
            with the dtype and device of `q`; `R` is even and at most `D`. With `positions`, a table
            `[rows, R]`.
        sin: sines, with the shape rules of `cos`.
        interleaved: which elements make a pair, see above; default False.
        positions: int64 `[length]`, `[1, length]` or `[batch, length]`: the row of `cos` and `sin`
            for each token. Default None: `cos` and `sin` have a row for each token.

    Returns:
        The rotated queries and keys. Each has the strides of its input, or is contiguous if the
        input has gaps or a head's elements are not neighbours in memory.

    Raises:
        RuntimeError: a dtype is not one of the four, dtypes or devices differ, a shape does not
            fit, `positions` is not int64 or names a row that the tables do not have (on CUDA the
            result of that token is NaN instead), or a tensor is sparse.
    """
    result: tuple[Tensor, Tensor] = torch.ops.fusewheel.rope(q, k, cos, sin, interleaved, positions)
    return result


def _pair(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    if interleaved:
        return x[..., ::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _join(a: Tensor, b: Tensor, interleaved: bool) -> Tensor:
    return torch.stack((a, b), dim=-1).flatten(-2) if interleaved else torch.cat((a, b), dim=-1)


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, transposed: bool = False
) -> Tensor:
    """One tensor rotated by PyTorch operators; with `transposed` it is rotated back."""
    size = cos.shape[-1]
    if size != x.shape[-1]:
        rotated = rotate(x[..., :size], cos, sin, interleaved, transposed)
        return torch.cat((rotated, x[..., size:]), dim=-1)
    a, b = _pair(x, interleaved)
    cos_a, cos_b = _pair(cos.unsqueeze(-3), interleaved)
    sin_a, sin_b = _pair(sin.unsqueeze(-3), interleaved)
    if transposed:
        sin_a, sin_b = -sin_b, -sin_a
    return _join(a * cos_a - b * sin_a, b * cos_b + a * sin_b, interleaved)


def at_positions(positions: Tensor | None, *tables: Tensor) -> tuple[Tensor, ...]:
    """The rows of the tables that `positions` names, or the tables themselves without positions."""
    return tables if positions is None else tuple(table[positions] for table in tables)


def _reference(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, positions: Tensor | None
) -> tuple[Tensor, Tensor]:
    cos, sin = at_positions(positions, cos, sin)
    return rotate(q, cos, sin, interleaved), rotate(k, cos, sin, interleaved)


def _fake(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, positions: Tensor | None
) -> tuple[Tensor, Tensor]:
    return _rotated("rope", ("q", q), ("k", k), cos, sin, positions)


def _backward_fake(
    grad_q: Tensor,
    grad_k: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    positions: Tensor | None,
) -> tuple[Tensor, Tensor]:
    given = ("grad_q", grad_q), ("grad_k", grad_k)
    return _rotated("rope_backward", *given, cos, sin, positions)


def _rotated(
    op: str, q: Argument, k: Argument, cos: Tensor, sin: Tensor, positions: Tensor | None
) -> tuple[Tensor, Tensor]:
    check_rope(op, (q, k), cos, sin, positions)
    return empty_rows(op, q), empty_rows(op, k)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    if needs[2] or needs[3]:
        # Learned tables are rare: the reference differentiates them.
        return reference_gradients(_reference, needs, grads, arguments)
    return *torch.ops.fusewheel.rope_backward(*grads, *arguments[2:]), None, None, None, None


def samples(make: Make) -> Iterator[Arguments]:
    """Arguments of `rope`."""
    rows = torch.tensor([[4, 0, 2], [2, 2, 1]], device=make.device)
    for interleaved in (False, True):
        last = interleaved, None
        yield make(2, 4, 5, 16), make(2, 2, 5, 16), make(1, 5, 16), make(1, 5, 16), *last
        yield make(2, 3, 7, 6), make(2, 1, 7, 6), make(2, 7, 6), make(7, 6), *last
        q, k = make(2, 2, 3, 9), make(2, 1, 3, 9)
        yield q, k, make(5, 6), make(5, 6), interleaved, rows
        q, k = make(2, 9, 3, 34).transpose(1, 2), make(2, 9, 1, 34).transpose(1, 2)
        yield q, k, make(1, 9, 34), make(1, 9, 34), *last
        q, k = make.strided(1, 2, 3, 10), make.transposed(1, 2, 3, 10)
        yield q, k, make.strided(3, 10), make.transposed(3, 10), *last
        yield q, k, make.strided(5, 8), make(5, 8), interleaved, rows[:1]
        q, k = make(2, 2, 3, 48), make(2, 1, 3, 48)
        yield q, k, make(5, 32), make(5, 32), interleaved, rows.T.flatten()[::2]
    yield make(1, 1, 1, 2), make(1, 1, 1, 2), make(1, 2), make(1, 2), False, None
    yield make(2, 3, 0, 8), make(2, 1, 0, 8), make(0, 8), make(0, 8), False, None
    yield make(1, 2, 3, 5), make(1, 2, 3, 5), make(3, 0), make(3, 0), True, None


def cut_heads(heads: int, outputs: int) -> Rule:
    """The sharding rule of `heads` tensors `[batch, heads, length, D]` followed by the tables: cut
    along any dimension but the last.
    """

    def rule(*arguments: Any) -> Iterator[Layout]:
        positions = heads + 3
        # The arguments that have a length dimension, and which it is, counted from the end. The
        # dimension before it, if there is one, is the batch.
        length = {heads: 2, heads + 1: 2} if arguments[positions] is None else {positions: 1}
        shapes = {i: tuple(arguments[i].shape) for i in length}

        def layout(dim: int, where: dict[int, Place]) -> Layout:
            where.update(dict.fromkeys(range(heads), dim))
            return Layout(places(arguments, where), (dim,) * outputs)

        if arguments[0].shape[0] != 1:
            yield layout(0, {i: 0 for i, s in shapes.items() if len(s) > length[i] and s[0] != 1})
        yield layout(1, {})
        yield layout(2, {i: len(s) - length[i] for i, s in shapes.items()})

    return rule


def _sharding(*arguments: Any) -> Iterator[Layout]:
    yield from cut_heads(heads=2, outputs=2)(*arguments)
    # Fewer key heads than devices.
    yield Layout(places(arguments, {0: 1}), (1, REPLICATE))


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for length, heads, key_heads, size in ((1, 9, 3, 64), (256, 9, 3, 64), (2048, 32, 8, 128)):
        q = make(1, length, heads, size).transpose(1, 2)
        k = make(1, length, key_heads, size).transpose(1, 2)
        table = make(1, length, size).detach()
        label = f"{length}x{heads}+{key_heads}x{size}"
        yield label, (q, k, table, table, False, None)
        half, rows = table[0, :, : size // 2], torch.arange(length, device=make.device)
        yield f"{label} partial", (q, k, half, half, False, rows)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    return _bad(make, "q", "k")


def bad_tables(make: Make, name: str) -> Iterator[tuple[Tensor, Tensor, Tensor | None, str]]:
    """Wrong tables and positions with the message for each, for heads `[2, ..., 5, 8]` in the
    argument `name`.
    """
    cos, table, rows = make(1, 5, 8), make(9, 8), torch.arange(5, device=make.device)
    other = torch.float64 if cos.dtype != torch.float64 else torch.float32
    yield cos.to(other), cos, None, f"cos must have the dtype of {name}"
    yield cos[:, 1:], cos, None, r"cos must have shape \[2, 5, 8\]"
    yield cos, cos[..., :4], None, r"sin must have shape \[2, 5, 8\]"
    for wrong in (cos[..., :7], make(5, 10)):
        yield wrong, wrong, None, "cos must have an even last dimension.*head size 8, got"
    yield table, table, rows.int(), "positions must be int64, got int32"
    yield table, table, rows[1:], r"positions must have shape \[2, 5\].*got \[4\]"
    yield table, table, rows.expand(3, 5), r"positions must have shape \[2, 5\].*got \[3, 5\]"
    yield cos, cos, rows, r"cos must have shape \[rows, 8\] where positions are given"
    yield table, table[1:], rows, r"sin must have shape \[rows, 8\].*the same rows"


def _bad(make: Make, q_name: str, k_name: str) -> Iterator[BadInput]:
    q, k, cos = make(2, 4, 5, 8), make(2, 2, 5, 8), make(1, 5, 8)
    other = torch.float64 if q.dtype != torch.float64 else torch.float32
    last = cos, cos, False, None
    yield BadInput((q.int(), k, *last), f"{q_name} must be float32.*got int32")
    yield BadInput((q, k.to(other), *last), f"{k_name} must have the dtype of {q_name}")
    yield BadInput((q[0], k, *last), f"{q_name} must have 4 dimensions")
    yield BadInput((q, k[:, :, 1:], *last), rf"{k_name} must have shape \[2, 2, 5, 8\]")
    for *tables, positions, message in bad_tables(make, q_name):
        yield BadInput((q, k, *tables, False, positions), message)


def _backward_reference(
    grad_q: Tensor,
    grad_k: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    positions: Tensor | None,
) -> tuple[Tensor, Tensor]:
    cos, sin = at_positions(positions, cos, sin)
    return (
        rotate(grad_q, cos, sin, interleaved, transposed=True),
        rotate(grad_k, cos, sin, interleaved, transposed=True),
    )


def _backward_backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    if needs[2] or needs[3]:
        return reference_gradients(_backward_reference, needs, grads, arguments)
    # Rotating back is undone by rotating.
    return *torch.ops.fusewheel.rope(*grads, *arguments[2:]), None, None, None, None


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    return _bad(make, "grad_q", "grad_k")


_TABLES = ("cos", "sin", "positions")

OPERATORS = (
    Operator(
        name="rope",
        reference=_reference,
        fake=_fake,
        shapes=("q", "k"),
        backward=_backward,
        saves={
            "q": _TABLES,
            "k": _TABLES,
            "cos": ("q", "k", "positions"),
            "sin": ("q", "k", "positions"),
        },
        sharding=_sharding,
        samples=samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=rope,
    ),
    Operator(
        name="rope_backward",
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("grad_q", "grad_k"),
        backward=_backward_backward,
        saves={
            "grad_q": _TABLES,
            "grad_k": _TABLES,
            "cos": ("grad_q", "grad_k", "positions"),
            "sin": ("grad_q", "grad_k", "positions"),
        },
        sharding=_sharding,
        samples=samples,
        bad_inputs=_backward_bad_inputs,
    ),
)
