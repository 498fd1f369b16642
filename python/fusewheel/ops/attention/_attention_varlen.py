"""What attention of packed sequences refuses, and its sample inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make
from fusewheel.dispatch.promise import Argument, check_same_device, fail
from fusewheel.dispatch.symbolic import known
from fusewheel.ops._checks import check_floating, check_matches, check_sizes, describe
from fusewheel.ops._rows import compute_dtype, wide
from fusewheel.ops.attention._attention import check_dims, check_group, check_options, factor_of
from fusewheel.ops.attention._varlen_formula import attention_varlen as formula


def check_varlen(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    sinks: Tensor | None,
    left: int,
    right: int,
    softcap: float,
) -> None:
    """Raises the errors of the kernel (`fusewheel/attention/attention_varlen.h`), but those about
    the numbers in `cu_seqlens_q` and `cu_seqlens_k`.
    """
    first = "q", q
    check_floating(op, first)
    check_dims(op, first, 3, "[all queries, heads, head size]")
    check_matches(op, ("k", k), first)
    check_dims(op, ("k", k), 3, "[all keys, heads, head size]")
    check_matches(op, ("v", v), first)
    check_dims(op, ("v", v), 3, "[all keys, heads, head size of the result]")
    check_group(op, q, k)
    check_sizes(op, ("k", k), (*k.shape[:2], q.shape[2]), "the head size is that of q")
    check_sizes(op, ("v", v), (*k.shape[:2], v.shape[2]), "keys and heads are those of k")
    _check_bounds(op, ("cu_seqlens_q", cu_seqlens_q), first)
    _check_bounds(op, ("cu_seqlens_k", cu_seqlens_k), first)
    expected = cu_seqlens_q.shape
    check_sizes(op, ("cu_seqlens_k", cu_seqlens_k), expected, "that of cu_seqlens_q")
    if sinks is not None:
        check_matches(op, ("sinks", sinks), first)
        check_sizes(op, ("sinks", sinks), q.shape[1:2], "the heads of q")
    check_options(op, left, right, softcap)


def _check_bounds(op: str, bounds: Argument, first: Argument) -> None:
    name, tensor = bounds
    if tensor.dtype not in (torch.int32, torch.int64):
        fail(op, f"{name} must be int32 or int64, got {describe(tensor.dtype)}")
    check_same_device(op, bounds, first)
    if tensor.dim() != 1 or known(tensor.shape[0] == 0):
        fail(op, f"{name} must have shape [sequences + 1], got {list(tensor.shape)}")


def check_varlen_backward(
    op: str,
    grad: Tensor,
    grad_logsumexp: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    sinks: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    left: int,
    right: int,
    scale: float,
    softcap: float,
) -> None:
    """Raises the errors of the backward kernel, but those about numbers."""
    check_varlen(op, q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, left, right, softcap)
    result = (*q.shape[:2], v.shape[2])
    for name, tensor in (("grad", grad), ("out", out)):
        check_matches(op, (name, tensor), ("q", q))
        check_sizes(op, (name, tensor), result, "that of the result")
    _check_values(op, ("grad_logsumexp", grad_logsumexp), q)
    _check_values(op, ("logsumexp", logsumexp), q)


def _check_values(op: str, values: Argument, q: Tensor) -> None:
    """Raises an error unless there is one value for each head and query."""
    check_floating(op, values)
    name, tensor = values
    check_sizes(op, values, (q.shape[1], q.shape[0]), "the heads and queries of q")
    dtype = compute_dtype(q)
    if tensor.dtype != dtype or tensor.device != q.device:
        wanted, got = describe(dtype), describe(tensor.dtype)
        fail(op, f"{name} must be {wanted} on {q.device}, got {got} on {tensor.device}")


def bounds_of(lengths: Sequence[int], device: str, dtype: torch.dtype = torch.int32) -> Tensor:
    """`cu_seqlens` of sequences of these lengths."""
    return torch.tensor([0, *accumulate(lengths)], dtype=dtype, device=device)


def samples(make: Make) -> Iterator[Arguments]:
    """Argument tuples that cover the options, lengths and strides."""

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        queries: Sequence[int],
        keys: Sequence[int],
        sinks: Tensor | None = None,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        dtype: torch.dtype = torch.int32,
    ) -> Arguments:
        bounds = (bounds_of(lengths, make.device, dtype) for lengths in (queries, keys))
        return q, k, v, *bounds, sinks, *window, factor_of(q), softcap

    # More queries than keys, more keys than queries, and sequences without the one or the other.
    yield call(
        *(make(46, 4, 16), make(51, 4, 16), make(51, 4, 16)),
        *((33, 3, 0, 10), (20, 27, 4, 0)),
    )
    # Small enough for finite differences; no other dimension has the head size.
    yield call(
        *(make(3, 2, 5), make(4, 1, 5), make(4, 1, 3), (1, 2), (2, 2), make(2)),
        window=(1, 0),
        softcap=2.0,
    )
    # Several blocks of queries and of keys.
    yield call(
        *(make(241, 6, 24), make(280, 2, 24), make(280, 2, 40), (130, 1, 110), (140, 30, 110)),
        window=(-1, 0),
        dtype=torch.int64,
    )
    yield call(
        *(make(35, 48, 16), make(141, 16, 16), make(141, 16, 16), (20, 0, 15), (21, 0, 120)),
        make(48),
        window=(20, 5),
        softcap=3.0,
    )
    *tensors, begin, end, _, left, right, factor, softcap = call(
        *(make.strided(22, 36, 7), make.strided(25, 9, 7), make.strided(25, 9, 13)),
        *((7, 15), (25, 0)),
    )
    apart = torch.stack((begin, begin - 1), -1)[:, 0]
    yield *tensors, apart, end, make.strided(36), left, right, factor, softcap
    yield call(
        *(make.transposed(50, 2, 8), make.transposed(60, 2, 8), make(60, 2, 24)[..., :9]),
        *((50,), (60,)),
    )
    yield call(make(0, 2, 4), make(5, 2, 4), make(5, 2, 4), (0, 0), (3, 2), window=(-1, 0))
    yield call(make(0, 2, 4), make(0, 1, 4), make(0, 1, 4), (), ())


def benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    """Arguments of the sizes that models use, each with a label."""
    lengths = [32 + 64 * i for i in range(16)]
    for heads, kv_heads, size in ((9, 3, 64), (32, 8, 128)):
        bounds = bounds_of(lengths, make.device)
        q, k, v = (make(sum(lengths), count, size) for count in (heads, kv_heads, kv_heads))
        label = f"{heads}:{kv_heads}x{len(lengths)} of {lengths[0]} to {lengths[-1]}x{size}"
        yield label, (q, k, v, bounds, bounds, None, -1, 0, size**-0.5, 0.0)


def bad_inputs(make: Make) -> Iterator[BadInput]:
    """Argument tuples that the operator must refuse."""
    q, k, v = make(7, 4, 8), make(9, 2, 8), make(9, 2, 3)
    of_q, of_k = bounds_of((3, 4), make.device), bounds_of((4, 5), make.device)
    options = (-1, -1, 0.5, 0.0)
    rest = (of_q, of_k, None, *options)
    other = torch.float64 if q.dtype != torch.float64 else torch.float32
    yield BadInput((q.int(), k, v, *rest), "q must be float32.*got int32")
    yield BadInput((q[0], k, v, *rest), r"q must have shape \[all queries, heads, head size\]")
    yield BadInput((q, k.to(other), v, *rest), "k must have the dtype of q")
    yield BadInput((q, k[0], v, *rest), r"k must have shape \[all keys, heads, head size\]")
    yield BadInput((q, k, v[0], *rest), r"v must have shape \[all keys, heads, head size of")
    yield BadInput((q[:, :3], k, v, *rest), "divides that of q, 3, got shape")
    yield BadInput((q, k[:, :0], v[:, :0], *rest), "divides that of q, 4, got shape")
    yield BadInput((q, k[..., :7], v, *rest), r"k must have shape \[9, 2, 8\]")
    yield BadInput((q, k, v[:5], *rest), r"v must have shape \[9, 2, 3\]")
    none = (None, *options)
    for wrong in (of_q.to(q.dtype), of_q.to(torch.int16)):
        yield BadInput((q, k, v, wrong, of_k, *none), "cu_seqlens_q must be int32 or int64, got")
    for wrong in (of_q[0], of_q[:0], of_q.unsqueeze(0)):
        yield BadInput((q, k, v, wrong, of_k, *none), r"cu_seqlens_q must have shape \[sequences")
    wrong = of_k.to(torch.uint8)
    yield BadInput((q, k, v, of_q, wrong, *none), "cu_seqlens_k must be int32 or int64, got uint8")
    message = r"cu_seqlens_k must have shape \[3\] \(that of cu_seqlens_q\), got \[2\]"
    yield BadInput((q, k, v, of_q, of_k[1:], *none), message)
    given = (q, k, v, of_q, of_k)
    yield BadInput((*given, make(3), *options), r"sinks must have shape \[4\].*got \[3\]")
    yield BadInput((*given, make(4).to(other), *options), "sinks must have the dtype of q")
    yield BadInput((*given, None, -2, -1, 0.5, 0.0), "left must be a number of keys")
    yield BadInput((*given, None, -1, -3, 0.5, 0.0), "right must be a number of keys")
    yield BadInput((*given, None, -1, -1, 0.5, -1.0), "softcap must be positive, or 0")


def _with_results(make: Make, arguments: Arguments) -> Arguments:
    """Arguments of the backward operator."""
    given, options = arguments[:6], arguments[6:]
    detached: list[Any] = [t if t is None else t.detach() for t in given]
    out, logsumexp = formula(*detached, *options)
    grad_logsumexp = wide(make(*logsumexp.shape).detach())
    results = [t.detach().requires_grad_(make.requires_grad) for t in (out, logsumexp)]
    grad_logsumexp.requires_grad_(make.requires_grad)
    return make(*out.shape), grad_logsumexp, *given, *results, *options


def backward_samples(make: Make) -> Iterator[Arguments]:
    """Argument tuples of the backward operator."""
    for index, arguments in enumerate(samples(make)):
        grad, *rest = _with_results(make, arguments)
        yield make.strided(*grad.shape) if index % 3 == 1 else grad, *rest


def backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    """Argument tuples that the backward operator must refuse."""
    bounds = (bounds_of(lengths, make.device) for lengths in ((3, 4), (4, 5)))
    good = (make(7, 4, 8), make(9, 2, 8), make(9, 2, 3), *bounds, None, -1, -1, 0.5, 0.0)
    grad, grad_logsumexp, *given, out, logsumexp = _with_results(make, good)[:10]
    for bad in bad_inputs(make):
        arguments, options = bad.arguments[:6], bad.arguments[6:]
        whole = (grad, grad_logsumexp, *arguments, out, logsumexp, *options)
        yield BadInput(whole, bad.message)
    options = good[6:]
    wrong = (
        ((grad[:1], grad_logsumexp), (out, logsumexp), r"grad must have shape \[7, 4, 3\]"),
        ((grad, grad_logsumexp.T), (out, logsumexp), r"grad_logsumexp must have shape \[4, 7\]"),
        ((grad, grad_logsumexp), (out[..., :2], logsumexp), r"out must have shape \[7, 4, 3\]"),
        ((grad, grad_logsumexp), (out, logsumexp.bfloat16()), "logsumexp must be float.*bfloat16"),
    )
    for first, last, message in wrong:
        yield BadInput((*first, *given, *last, *options), message)
