"""Helpers of elementwise operators: the strides of their output, and sample inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from fusewheel.dispatch.operator import BadInput, Make
from fusewheel.dispatch.promise import Argument, fail
from fusewheel.dispatch.symbolic import any_unbacked, is_unbacked, known, possible
from fusewheel.ops._checks import check, check_floating, check_matches


def broadcast_shape(op: str, *arguments: Argument) -> list[Any]:
    """The shape that inputs broadcast to. Raises an error if they do not.

    A size that is only known at run time is not stretched, as in PyTorch's own operators: where
    it meets another one, the two are compared at run time.
    """
    rank = max(tensor.dim() for _, tensor in arguments)
    shape: list[Any] = []
    for dim in range(-rank, 0):
        size: Any = 1
        for name, tensor in arguments:
            extent = tensor.shape[dim] if tensor.dim() >= -dim else 1
            if known(extent == 1):
                continue
            if not known(size == 1):
                first, other = arguments[0]
                message = (
                    f"{name} of shape {list(tensor.shape)} must broadcast with {first} of shape "
                    f"{list(other.shape)}"
                )
                check(op, extent == size, message)
            size = extent
        shape.append(size)
    return shape


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements are known to fill a block of memory without gaps or overlap.

    For tensors with elements this is `aten::is_non_overlapping_and_dense`. PyTorch's own version
    for symbols is not used: it finds gaps where a dimension of size 1 has an odd stride, and it
    cannot tell what is possible from what is known, which `kept_strides` asks for.
    """
    return _dense_order(tensor.shape, tensor.stride(), known) is not None


def _dense_order(
    sizes: Sequence[Any], strides: Sequence[Any], holds: Callable[[Any], bool]
) -> list[int] | None:
    """The dimensions with more than one element, from the innermost one out; None if the elements
    do not fill a block of memory. `holds` decides about a condition.
    """
    left = [dim for dim, size in enumerate(sizes) if not known(size == 1)]
    order: list[int] = []
    # PyTorch writes the strides of a contiguous tensor with max(size, 1) for a size, or without.
    expected: Any = 1
    at_least: Any = 1
    while left:
        found = next(
            (d for d in left if holds(strides[d] == expected) or holds(strides[d] == at_least)),
            None,
        )
        if found is None or known(sizes[found] == 0):
            return None
        expected = expected * sizes[found]
        at_least = at_least * torch.sym_max(sizes[found], 1)
        left.remove(found)
        order.append(found)
    return order


def kept_strides(op: str, name: str, tensor: Tensor) -> tuple[Any, ...] | None:
    """The strides of a result that lies like `tensor` where that is dense; None for contiguous.

    Sizes that are only known at run time may decide whether a tensor is dense. It does not matter
    where its dimensions are in their order: then it lies as a contiguous one.
    """
    sizes, strides = tensor.shape, tensor.stride()
    if _dense_order(sizes, strides, known) is not None:
        return strides
    unbacked = [dim for dim, size in enumerate(sizes) if is_unbacked(size)]
    if not unbacked and not any_unbacked(strides):
        return None
    # Each of these sizes may turn out to be 1, and its stride then has no meaning.
    for count in range(len(unbacked) + 1):
        for ones in combinations(unbacked, count):
            tried = [1 if dim in ones else size for dim, size in enumerate(sizes)]
            order = _dense_order(tried, strides, possible)
            if order is not None and order != sorted(order, reverse=True):
                fail(
                    op,
                    f"{name} must have a memory layout that is known while tracing: whether it "
                    f"has gaps depends on a size that is only known at run time (shape "
                    f"{list(sizes)}, strides {list(strides)}). Call .contiguous() on it",
                )
    return None


def empty_rows(op: str, x: Argument) -> Tensor:
    """Rows like those of x: in its layout where it is dense and a row's elements are neighbours."""
    name, tensor = x
    strides = kept_strides(op, name, tensor) if known(tensor.stride(-1) == 1) else None
    if strides is None:
        return tensor.new_empty(tensor.shape)
    return tensor.new_empty_strided(tensor.shape, strides)


def empty_output(op: str, *arguments: Argument) -> Tensor:
    """The output of an elementwise kernel: dense inputs that agree give it their layout."""
    (name, first), *others = arguments
    check_floating(op, arguments[0])
    for argument in others:
        check_matches(op, argument, arguments[0])
    shape = broadcast_shape(op, *arguments)
    strides = kept_strides(op, name, first) if all(_agree(t, first) for _, t in others) else None
    if strides is None:
        return first.new_empty(shape)
    return first.new_empty_strided(shape, strides)


def _agree(tensor: Tensor, first: Tensor) -> bool:
    return tensor.dim() == first.dim() and all(
        known(a == b)
        for a, b in zip(
            (*tensor.shape, *tensor.stride()), (*first.shape, *first.stride()), strict=True
        )
    )


def check_apart(op: str, given: Argument, out: Argument) -> None:
    """Raises an error if the dense output overlaps a dense input, unless both are one tensor."""
    name, tensor = given
    written = out[1]
    if not (is_dense(tensor) and is_dense(written)) or not _share_memory(tensor, written):
        return
    same = known(tensor.storage_offset() == written.storage_offset())
    if not (same and _agree(tensor, written)):
        fail(op, f"{out[0]} must not overlap {name} in memory unless they are the same tensor")


def _share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two dense tensors are known to have elements in common."""
    try:
        memory = StorageWeakRef(a.untyped_storage()), StorageWeakRef(b.untyped_storage())
    except RuntimeError:  # a tensor of `torch.func` does not say where it lies
        return False
    if memory[0] != memory[1]:
        return False
    begin, other = a.storage_offset(), b.storage_offset()
    return known(begin < other + b.numel()) and known(other < begin + a.numel())


def pairs(make: Make) -> Iterator[tuple[Tensor, Tensor]]:
    """Two operands: equal shapes, broadcasting, odd sizes, gaps, transposes, nothing, a scalar."""
    yield make(255, 123), make(255, 123)
    yield make(3, 1, 7), make(5, 1)
    yield make(1), make(4, 33)
    yield make(), make(2, 3)
    yield make.strided(7, 19), make.strided(7, 19)
    yield make.transposed(2, 17, 9), make.transposed(2, 17, 9)
    yield make.transposed(6, 8), make(6, 8)
    yield make(2, 1, 8).expand(2, 5, 8), make(5, 8)
    yield make(0, 4), make(1, 4)
    yield make(2, 3, 4, 5, 6), make(4, 1, 6)


SIZES = ((8, 576), (512, 2048), (4096, 4096))


def bad_pairs(make: Make, first: str, second: str, *rest: float) -> Iterator[BadInput]:
    """Pairs of operands that do not fit together, or are not tensors."""
    a = make(4, 8)
    yield BadInput((a.to(torch.int32), a, *rest), f"{first} must be float32.*got int32")
    yield BadInput((a.to(torch.complex64), a, *rest), f"{first} must be float32.*got complex64")
    other = torch.float64 if a.dtype != torch.float64 else torch.float32
    yield BadInput((a, a.to(other), *rest), f"{second} must have the dtype of {first}")
    yield BadInput((a, make(4, 7), *rest), rf"{second} of shape \[4, 7\] must broadcast")
