"""Rotary position embedding of queries and keys"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._elementwise import is_dense
from fusewheel._operator import Arguments, BadInput, Make, Operator
from fusewheel._register import reference_gradients


def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Rotates pairs of head elements: `(a, b) -> (a cos - b sin, b cos + a sin)`.

    Source: Su et al., "RoFormer" (2021). The pairs are elements `i` and `i + D / 2` of a head (the
    "rotate half" layout of Llama and its kin), or neighbours `2 i` and `2 i + 1` where
    `interleaved`. Queries and keys may have different numbers of heads (grouped-query attention).

    Args:
        q: queries `[batch, heads, length, D]`, D even; float32, bfloat16, float16 or float64. A
            transposed view is read as it lies.
        k: keys `[batch, key heads, length, D]`, dtype and device of `q`.
        cos: cosines `[batch or 1, length, D]` or `[length, D]`, one per element, dtype of `q`.
        sin: sines, likewise.
        interleaved: which elements make a pair, see above.

    Returns:
        The rotated queries and keys, each in the memory layout of its input (contiguous where that
        has gaps or the elements of a head are apart).

    Raises:
        RuntimeError: a dtype is not floating or differs, a shape does not fit, or a tensor is
            sparse.
    """
    result: tuple[Tensor, Tensor] = torch.ops.fusewheel.rope(q, k, cos, sin, interleaved)
    return result


def _pair(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    if interleaved:
        return x[..., ::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _join(a: Tensor, b: Tensor, interleaved: bool) -> Tensor:
    return torch.stack((a, b), dim=-1).flatten(-2) if interleaved else torch.cat((a, b), dim=-1)


def _rotate(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, transposed: bool = False
) -> Tensor:
    a, b = _pair(x, interleaved)
    cos_a, cos_b = _pair(cos.unsqueeze(-3), interleaved)
    sin_a, sin_b = _pair(sin.unsqueeze(-3), interleaved)
    if transposed:
        sin_a, sin_b = -sin_b, -sin_a
    return _join(a * cos_a - b * sin_a, b * cos_b + a * sin_b, interleaved)


def _reference(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    return _rotate(q, cos, sin, interleaved), _rotate(k, cos, sin, interleaved)


def _fake_like(x: Tensor) -> Tensor:
    if is_dense(x) and x.stride(-1) == 1:
        return x.new_empty_strided(x.shape, x.stride())
    return x.new_empty(x.shape)


def _fake(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    torch._check(q.dim() == 4, lambda: "rope: q must have 4 dimensions")
    torch._check(k.dim() == 4, lambda: "rope: k must have 4 dimensions")
    return _fake_like(q), _fake_like(k)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    _, _, cos, sin, interleaved = arguments
    if needs[2] or needs[3]:
        # Learned tables are rare: the reference differentiates them.
        return reference_gradients(_reference, needs, grads, arguments)
    grad_q, grad_k = torch.ops.fusewheel.rope_backward(*grads, cos, sin, interleaved)
    return grad_q, grad_k, None, None, None


def _samples(make: Make) -> Iterator[Arguments]:
    for interleaved in (False, True):
        yield make(2, 4, 5, 16), make(2, 2, 5, 16), make(1, 5, 16), make(1, 5, 16), interleaved
        yield make(2, 3, 7, 6), make(2, 1, 7, 6), make(2, 7, 6), make(7, 6), interleaved
        yield (
            make(2, 9, 3, 34).transpose(1, 2),
            make(2, 9, 1, 34).transpose(1, 2),
            make(1, 9, 34),
            make(1, 9, 34),
            interleaved,
        )
        yield (
            make.strided(1, 2, 3, 10),
            make.transposed(1, 2, 3, 10),
            make.strided(3, 10),
            make.transposed(3, 10),
            interleaved,
        )
    yield make(1, 1, 1, 2), make(1, 1, 1, 2), make(1, 2), make(1, 2), False
    yield make(2, 3, 0, 8), make(2, 1, 0, 8), make(0, 8), make(0, 8), False


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for length, heads, key_heads, size in ((1, 9, 3, 64), (256, 9, 3, 64), (2048, 32, 8, 128)):
        q = make(1, length, heads, size).transpose(1, 2)
        k = make(1, length, key_heads, size).transpose(1, 2)
        table = make(1, length, size).detach()
        yield f"{length}x{heads}+{key_heads}x{size}", (q, k, table, table, False)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    return _bad(make, "q", "k")


def _bad(make: Make, q_name: str, k_name: str) -> Iterator[BadInput]:
    q, k, cos = make(2, 4, 5, 8), make(2, 2, 5, 8), make(1, 5, 8)
    other = torch.float64 if q.dtype != torch.float64 else torch.float32
    yield BadInput((q.int(), k, cos, cos, False), f"{q_name} must be float32.*got int32")
    yield BadInput((q, k.to(other), cos, cos, False), f"{k_name} must have the dtype of {q_name}")
    yield BadInput((q, k, cos.to(other), cos, False), f"cos must have the dtype of {q_name}")
    yield BadInput((q[0], k, cos, cos, False), f"{q_name} must have 4 dimensions")
    yield BadInput((q, k[:, :, 1:], cos, cos, False), rf"{k_name} must have shape \[2, 2, 5, 8\]")
    yield BadInput((q, k, cos[:, 1:], cos, False), r"cos must have shape \[2, 5, 8\]")
    yield BadInput((q, k, cos, cos[..., :4], False), r"sin must have shape \[2, 5, 8\]")
    yield BadInput(
        (q[..., :7], k[..., :7], cos[..., :7], cos[..., :7], False), "even head size, got 7"
    )
    yield BadInput((q, None, cos, cos, False), rf"{k_name}\b.*(None|NoneType)")
    if q.dtype == torch.float32:
        yield BadInput((q, k.to_sparse(), cos, cos, False), f"{k_name} must be a dense tensor")


def _backward_reference(
    grad_q: Tensor, grad_k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    return (
        _rotate(grad_q, cos, sin, interleaved, transposed=True),
        _rotate(grad_k, cos, sin, interleaved, transposed=True),
    )


def _backward_backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    _, _, cos, sin, interleaved = arguments
    if needs[2] or needs[3]:
        return reference_gradients(_backward_reference, needs, grads, arguments)
    # The transpose of the transpose.
    q, k = torch.ops.fusewheel.rope(*grads, cos, sin, interleaved)
    return q, k, None, None, None


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    return _bad(make, "grad_q", "grad_k")


OPERATORS = (
    Operator(
        name="rope",
        reference=_reference,
        fake=_fake,
        backward=_backward,
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=rope,
    ),
    Operator(
        name="rope_backward",
        reference=_backward_reference,
        fake=_fake,
        backward=_backward_backward,
        samples=_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)
