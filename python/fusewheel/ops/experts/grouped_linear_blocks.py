"""Linear layers of groups of rows, each with its own weight in stored blocks"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.promise import Argument, check_same_device, fail
from fusewheel.dispatch.sharding import PARTIAL, Layout, places
from fusewheel.ops._checks import check_floating, check_sizes, check_weight_dtype, describe
from fusewheel.ops._rows import with_features
from fusewheel.ops.choices import BlockKind
from fusewheel.ops.experts._groups import (
    check_ends,
    check_group_rows,
    groups_of,
    rows_in_groups,
)
from fusewheel.ops.experts.grouped_linear import bias_gradient
from fusewheel.ops.linear._blocks import (
    FORMATS,
    BlockFormat,
    factor_of,
    format_of,
    kind_number,
)
from fusewheel.ops.linear._quantized import apply_backward, apply_linear
from fusewheel.ops.linear.linear_blocks import random_blocks


def grouped_linear_blocks(
    x: Tensor, blocks: Tensor, kind: BlockKind, ends: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Linear layers of groups of rows whose weights are read in the blocks in which they are
    stored: `x[rows of group e] @ w[e].T + bias[e]`.

    The rows of `x` are sorted by group, as for `grouped_linear`. Group `e` has the rows from
    `ends[e - 1]` (0 for the first group) to `ends[e]`. A group may have no rows; its weight is not
    read then. Rows after the last end belong to no group: their result is 0, and they have no
    gradient.

    Sums are float32 (float64 if `x` is float64) and rounded once. As in `linear_blocks`, a weight
    may be rounded to bfloat16 if `x` is bfloat16. A group's result has the same bits for any number
    of threads.

    Source: `torch.nn.functional.grouped_mm`; `linear_blocks` has the formats of blocks.

    Args:
        x: `[rows, K]`; float32, bfloat16, float16 or float64.
        blocks: `[groups, N, K / weights, bytes]`, uint8, on the device of `x`. They are copied only
            if the blocks of a row do not lie one behind the other.
        kind: the name of their format, one of those of `linear_blocks`.
        ends: int32 or int64 `[groups]`, on the device of `x`: where each group ends.
        bias: `[groups, N]`, on the device of `x`; one of the four dtypes of `x`, but float64 only
            if `x` is float64. Default None.

    Returns:
        A contiguous tensor `[rows, N]` with the dtype of `x`; differentiable in `x` and `bias`.

    Raises:
        ValueError: `kind` is not one of those formats.
        RuntimeError: a dtype, shape or device is not as above, a tensor is sparse, or, on a CPU,
            `ends` falls or has a number below 0 or above the number of rows. On a GPU such ends
            give wrong results, and no memory outside the tensors is read or written.
    """
    number = kind_number("grouped_linear_blocks", kind)
    y: Tensor = torch.ops.fusewheel.grouped_linear_blocks(x, blocks, number, ends, bias)
    return y


def grouped_blocks_reference(
    x: Tensor, blocks: Tensor, kind: int, ends: Tensor, bias: Tensor | None
) -> Tensor:
    """The same in PyTorch's operators."""
    y = x.new_zeros((x.shape[0], blocks.shape[1]))
    for e, rows in enumerate(groups_of("grouped_linear_blocks", ends, ("x", x))):
        weight = factor_of(x, blocks[e], kind)
        own = apply_linear(rows.of(x), weight, None if bias is None else bias[e], x.dtype)
        y = rows.place(y, own)
    return y


def check_group_blocks(op: str, blocks: Argument, kind: int, x: Argument) -> BlockFormat:
    """Raises an error unless there are rows of blocks of their format for each group."""
    name, tensor = blocks
    check_same_device(op, blocks, x)
    if tensor.dtype != torch.uint8:
        fail(op, f"{name} must be uint8, got {describe(tensor.dtype)}")
    format = format_of(op, kind)
    if tensor.dim() != 4 or tensor.shape[3] != format.bytes:
        fail(
            op,
            f"{name} must have shape [groups, out features, blocks, {format.bytes}] for "
            f"{format.name}, got {list(tensor.shape)}",
        )
    return format


def _fake(x: Tensor, blocks: Tensor, kind: int, ends: Tensor, bias: Tensor | None) -> Tensor:
    op, argument = "grouped_linear_blocks", ("x", x)
    check_floating(op, argument)
    format = check_group_blocks(op, ("blocks", blocks), kind, argument)
    check_group_rows(op, argument, blocks.shape[2] * format.weights, "in features")
    check_ends(op, ends, blocks.shape[0], argument)
    if bias is not None:
        check_same_device(op, ("bias", bias), argument)
        check_weight_dtype(op, ("bias", bias), argument)
        check_sizes(op, ("bias", bias), blocks.shape[:2], "groups, out features")
    return with_features(x, blocks.shape[1])


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> list[Tensor | None]:
    _, blocks, kind, ends, bias = arguments
    (grad,) = grads
    grad_x = grad_bias = None
    if needs[0]:
        grad_x = torch.ops.fusewheel.grouped_linear_blocks_backward(grad, blocks, kind, ends)
    if needs[4]:
        grad_bias = bias_gradient(grad, bias, ends)
    return [grad_x, None, None, None, grad_bias]


def _backward_reference(grad: Tensor, blocks: Tensor, kind: int, ends: Tensor) -> Tensor:
    format = format_of("grouped_linear_blocks_backward", kind)
    grad_x = grad.new_zeros((grad.shape[0], blocks.shape[2] * format.weights))
    groups = groups_of("grouped_linear_blocks_backward", ends, ("grad", grad))
    for e, rows in enumerate(groups):
        own = apply_backward(rows.of(grad), factor_of(grad, blocks[e], kind))
        grad_x = rows.place(grad_x, own)
    return grad_x


def _backward_fake(grad: Tensor, blocks: Tensor, kind: int, ends: Tensor) -> Tensor:
    op, argument = "grouped_linear_blocks_backward", ("grad", grad)
    check_floating(op, argument)
    format = check_group_blocks(op, ("blocks", blocks), kind, argument)
    check_group_rows(op, argument, blocks.shape[1], "out features")
    check_ends(op, ends, blocks.shape[0], argument)
    return with_features(grad, blocks.shape[2] * format.weights)


def _backward_backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> list[Tensor | None]:
    outer = torch.ops.fusewheel.grouped_linear_blocks(grads[0], *arguments[1:], None)
    return [outer, None, None, None]


def _weight(make: Make, name: str, groups: int, rows: int, count: int) -> tuple[Tensor, int]:
    blocks = random_blocks(make, name, groups * rows, count)
    return blocks.unflatten(0, (groups, rows)), FORMATS[name].number


def _ends(make: Make, *numbers: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=make.device)


def _samples(make: Make) -> Iterator[Arguments]:
    for i, (name, format) in enumerate(FORMATS.items()):
        bias = make(2, 9) if i % 2 else None
        weight = _weight(make, name, 2, 9, 256 // format.weights)
        yield make(4, 256), *weight, _ends(make, 1, 4), bias
    yield make(37, 64), *_weight(make, "Q4_1", 4, 33, 2), _ends(make, 20, 20, 21, 37), make(4, 33)
    long = _ends(make, 4, 5, 7, dtype=torch.int64)
    yield make(9, 96), *_weight(make, "Q8_0", 3, 35, 3), long, None
    strided = _ends(make, 1, 0, 3, 0)[::2]
    yield make.strided(6, 64), *_weight(make, "NF4", 2, 8, 1), strided, make.strided(2, 8)
    blocks, kind = _weight(make, "Q4_0", 6, 7, 3)
    yield make.transposed(6, 64), blocks[::2, 1:4, 1:], kind, _ends(make, 2, 2, 6), None
    yield make(0, 32), *_weight(make, "MXFP4", 2, 3, 1), _ends(make, 0, 0), make(2, 3)
    yield make(4, 0), *_weight(make, "Q5_0", 2, 3, 0), _ends(make, 1, 4), make(2, 3)
    yield make(1, 32), *_weight(make, "MXFP4", 2, 1, 1), _ends(make, 0, 1), make(2, 1)


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for x, blocks, kind, ends, _ in _samples(make):
        yield make(x.shape[0], blocks.shape[1]), blocks, kind, ends


def _refused(name: str, make: Make, columns: int, *rest: None) -> Iterator[BadInput]:
    """What both operators refuse; the blocks are of Q4_0."""
    blocks, kind = _weight(make, "Q4_0", 2, 3, 2)
    x, ends = make(4, columns), _ends(make, 1, 4)
    yield BadInput((x.int(), blocks, kind, ends, *rest), f"{name} must be float32.*got int32")
    what = f"{name} must have shape \\[rows, {columns}\\].*got"
    yield BadInput((x[:, 1:], blocks, kind, ends, *rest), rf"{what} \[4, {columns - 1}\]")
    yield BadInput((x[0], blocks, kind, ends, *rest), rf"{what} \[{columns}\]")
    yield BadInput((x, blocks.float(), kind, ends, *rest), "blocks must be uint8, got float32")
    shape = r"blocks must have shape \[groups, out features, blocks, 18\] for Q4_0, got"
    yield BadInput((x, blocks[0], kind, ends, *rest), shape)
    yield BadInput((x, blocks[..., 1:], kind, ends, *rest), shape)
    yield BadInput((x, blocks, 5, ends, *rest), "kind must be the number of a block format, got 5")
    other = FORMATS["Q4_K"].number
    yield BadInput((x, blocks, other, ends, *rest), r"blocks, 144\] for Q4_K")
    dtypes = "ends must be int32 or int64, got float32"
    yield BadInput((x, blocks, kind, ends.float(), *rest), dtypes)
    sizes = r"ends must have shape \[2\].*got \[1\]"
    yield BadInput((x, blocks, kind, ends[:1], *rest), sizes)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    yield from _refused("x", make, 64, None)
    given = make(4, 64), *_weight(make, "Q4_0", 2, 3, 2), _ends(make, 1, 4)
    yield BadInput((*given, make(3)), r"bias must have shape \[2, 3\].*got \[3\]")
    yield BadInput((*given, make(2, 3).int()), "bias must be float32.*got int32")
    if make.dtype != torch.float64:
        yield BadInput((*given, make(2, 3).double()), "bias may be float64 only where x is")


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    yield from _refused("grad", make, 3)


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for name in ("Q4_1", "Q8_0", "MXFP4"):
        weight = _weight(make, name, 32, 1024, 1024 // FORMATS[name].weights)
        for rows in (4, 64, 1024):
            ends = torch.arange(1, 33, device=make.device, dtype=torch.int32) * rows // 32
            label = f"{name} {rows} rows, 32 groups, 1024x1024"
            yield label, (make(rows, 1024), *weight, ends, None)


def _sharding(*arguments: Any) -> Iterator[Layout]:
    """The features are cut, as in tensor parallelism. Rows are not: the ends would be others."""
    yield Layout(places(arguments, {1: 1, 4: 1}), (1,))
    # The bias is added on one device only, not on each. A block cannot be cut.
    yield Layout(places(arguments, {0: 1, 1: 2, 4: PARTIAL}), (PARTIAL,), even=True)


def _backward_sharding(*arguments: Any) -> Iterator[Layout]:
    yield Layout(places(arguments, {0: 1, 1: 1}), (PARTIAL,))
    yield Layout(places(arguments, {1: 2}), (1,), even=True)


def _flops(x: Tensor, blocks: Tensor, kind: int, ends: Tensor, *rest: Any) -> int:
    weights = format_of("grouped_linear_blocks", kind).weights
    columns = blocks.shape[2] * weights
    return 2 * rows_in_groups(ends, x.shape[0]) * blocks.shape[1] * columns


OPERATORS = (
    Operator(
        name="grouped_linear_blocks",
        autocast=None,
        flops=_flops,
        reference=grouped_blocks_reference,
        fake=_fake,
        shapes=("with_last(x, blocks[1])",),
        backward=_backward,
        saves={"x": ("blocks", "ends"), "bias": ("ends",)},
        sharding=_sharding,
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=grouped_linear_blocks,
    ),
    Operator(
        name="grouped_linear_blocks_backward",
        flops=_flops,
        reference=_backward_reference,
        fake=_backward_fake,
        # As in the table of formats: K-quants have the numbers 10 to 14, ours begin at 1000.
        shapes=(
            "with_last(grad, blocks[2] * (256 if 10 <= kind and kind <= 14"
            " else 64 if kind >= 1000 else 32))",
        ),
        backward=_backward_backward,
        saves={"grad": ("blocks", "ends")},
        sharding=_backward_sharding,
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)
