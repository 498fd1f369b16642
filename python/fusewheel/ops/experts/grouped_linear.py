"""Linear layers of groups of rows, each with its own weight"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, Operator, Unsaved
from fusewheel.dispatch.promise import check_same_device
from fusewheel.dispatch.sharding import PARTIAL, REPLICATE, Layout, places
from fusewheel.ops._checks import (
    check,
    check_floating,
    check_matches,
    check_sizes,
    check_weight_dtype,
)
from fusewheel.ops._rows import compute_dtype, with_features
from fusewheel.ops.experts import _grouped_linear as inputs
from fusewheel.ops.experts._groups import (
    check_ends,
    check_group_rows,
    check_weights,
    groups_of,
    rows_in_groups,
)


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear layers of groups of rows: `x[rows of group e] @ weight[e].T + bias[e]`.

    The rows of `x` are sorted by group. Group `e` has the rows from `ends[e - 1]` (0 for the first
    group) to `ends[e]`. A group may have no rows; its weight is not read then. Rows after the last
    end belong to no group: their result is 0, and they have no gradient.

    The weight is read as it is stored. Sums are float32 (float64 if `x` is float64) and rounded
    once. A group's result has the same bits for any number of threads. Gradients flow to `x`,
    `weight` and `bias`.

    Source: `torch.nn.functional.grouped_mm`, whose weight is `weight.transpose(1, 2)` and whose
    `offs` are `ends`.

    Args:
        x: `[rows, in features]`; float32, bfloat16, float16 or float64.
        weight: `[groups, out features, in features]`, on the device of `x`; any of the four dtypes,
            but float64 only if `x` is float64. It is copied unless one of the last two dimensions
            has stride 1.
        ends: int32 or int64 `[groups]`, on the device of `x`: where each group ends.
        bias: `[groups, out features]`, on the device of `x`, with the dtype rule of `weight`;
            default None.

    Returns:
        A contiguous tensor `[rows, out features]` with the dtype of `x`.

    Raises:
        RuntimeError: a dtype, shape or device is not as above, a tensor is sparse, or, on a CPU,
            `ends` falls or has a number below 0 or above the number of rows. On a GPU such ends
            give wrong results, and no memory outside the tensors is read or written.
    """
    y: Tensor = torch.ops.fusewheel.grouped_linear(x, weight, ends, bias)
    return y


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`x @ weight.T + bias`, computed in `dtype`."""
    offset = None if bias is None else bias.to(dtype)
    return torch.nn.functional.linear(x.to(dtype), weight.to(dtype), offset)


def _product_dtype(x: Tensor, *others: Tensor | None) -> torch.dtype:
    alike = all(t is None or t.dtype == x.dtype for t in others)
    return x.dtype if alike else compute_dtype(x)


def grouped_reference(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> Tensor:
    """The same in PyTorch's operators."""
    dtype = _product_dtype(x, weight, bias)
    y = x.new_zeros((x.shape[0], weight.shape[1]))
    for e, rows in enumerate(groups_of("grouped_linear", ends, ("x", x))):
        own = _product(rows.of(x), weight[e], None if bias is None else bias[e], dtype)
        y = rows.place(y, own.to(x.dtype))
    return y


def _fake(x: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None) -> Tensor:
    op, argument = "grouped_linear", ("x", x)
    check_floating(op, argument)
    check_weights(op, ("weight", weight), argument)
    check_group_rows(op, argument, weight.shape[2], "in features")
    check_ends(op, ends, weight.shape[0], argument)
    if bias is not None:
        check_same_device(op, ("bias", bias), argument)
        check_weight_dtype(op, ("bias", bias), argument)
        check_sizes(op, ("bias", bias), weight.shape[:2], "groups, out features")
    return with_features(x, weight.shape[1])


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor | Unsaved, ends: Tensor) -> Tensor:
    like = weight.blank(grad) if isinstance(weight, Unsaved) else weight
    result: Tensor = torch.ops.fusewheel.grouped_linear_backward_weight(grad, x, like, ends)
    return result


def bias_gradient(grad: Tensor, bias: Unsaved, ends: Tensor) -> Tensor:
    """The sum of each group's rows: the gradient of a weight whose only input is 1."""
    like = Unsaved(torch.Size((*bias.shape, 1)), bias.dtype)
    return _weight_gradient(grad, grad.new_ones((grad.shape[0], 1)), like, ends).squeeze(-1)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> list[Tensor | None]:
    x, weight, ends, bias = arguments
    (grad,) = grads
    return [
        torch.ops.fusewheel.grouped_linear_backward_x(grad, weight, ends) if needs[0] else None,
        _weight_gradient(grad, x, weight, ends) if needs[1] else None,
        None,
        bias_gradient(grad, bias, ends) if needs[3] else None,
    ]


def _backward_x_reference(grad: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    dtype = compute_dtype(grad)
    grad_x = grad.new_zeros((grad.shape[0], weight.shape[2]))
    for e, rows in enumerate(groups_of("grouped_linear_backward_x", ends, ("grad", grad))):
        own = _product(rows.of(grad), weight[e].T, None, dtype)
        grad_x = rows.place(grad_x, own.to(grad.dtype))
    return grad_x


def _backward_x_fake(grad: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    op, argument = "grouped_linear_backward_x", ("grad", grad)
    check_floating(op, argument)
    check_weights(op, ("weight", weight), argument)
    check_group_rows(op, argument, weight.shape[1], "out features")
    check_ends(op, ends, weight.shape[0], argument)
    return with_features(grad, weight.shape[2])


def _backward_x_backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> list[Tensor | None]:
    grad, weight, ends = arguments
    (outer,) = grads
    return [
        torch.ops.fusewheel.grouped_linear(outer, weight, ends, None) if needs[0] else None,
        _weight_gradient(grad, outer, weight, ends) if needs[1] else None,
        None,
    ]


def _backward_weight_reference(grad: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    dtype = compute_dtype(x)
    groups = groups_of("grouped_linear_backward_weight", ends, ("grad", grad))
    own = [_product(rows.of(grad).T, rows.of(x).T, None, dtype) for rows in groups]
    return torch.stack(own).to(weight.dtype) if own else torch.zeros_like(weight)


def _backward_weight_fake(grad: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    op, first = "grouped_linear_backward_weight", ("grad", grad)
    check_floating(op, first)
    check_matches(op, ("x", x), first)
    check_weights(op, ("weight", weight), first)
    check_group_rows(op, first, weight.shape[1], "out features")
    check_group_rows(op, ("x", x), weight.shape[2], "in features")
    rows, count = grad.shape[0], x.shape[0]
    check(op, count == rows, f"x must have as many rows as grad, {rows}, got {count}")
    check_ends(op, ends, weight.shape[0], first)
    return torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)


def _backward_weight_backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> list[Tensor | None]:
    grad, x, _, ends = arguments
    (outer,) = grads
    fusewheel = torch.ops.fusewheel
    return [
        fusewheel.grouped_linear(x, outer, ends, None) if needs[0] else None,
        fusewheel.grouped_linear_backward_x(grad, outer, ends) if needs[1] else None,
        torch.zeros_like(outer) if needs[2] else None,
        None,
    ]


def _sharding(*arguments: Any) -> Iterator[Layout]:
    """The features are cut, as in tensor parallelism. Rows are not: the ends would be others."""
    yield Layout(places(arguments, {1: 1, 3: 1}), (1,))
    # The bias is added on one device only, not on each.
    yield Layout(places(arguments, {0: 1, 1: 2, 3: PARTIAL}), (PARTIAL,))


def _backward_x_sharding(*arguments: Any) -> Iterator[Layout]:
    yield Layout((1, 1, REPLICATE), (PARTIAL,))
    yield Layout((REPLICATE, 2, REPLICATE), (1,))


def _backward_weight_sharding(*arguments: Any) -> Iterator[Layout]:
    yield Layout((1, REPLICATE, 1, REPLICATE), (1,))
    yield Layout((REPLICATE, 1, 2, REPLICATE), (2,))


def _flops(x: Tensor, weight: Tensor, ends: Tensor, *rest: Any) -> int:
    return 2 * rows_in_groups(ends, x.shape[0]) * weight.shape[1] * weight.shape[2]


def _backward_weight_flops(grad: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> int:
    return _flops(x, weight, ends)


OPERATORS = (
    Operator(
        name="grouped_linear",
        autocast="lower",
        flops=_flops,
        reference=grouped_reference,
        fake=_fake,
        shapes=("with_last(x, weight[1])",),
        backward=_backward,
        saves={"x": ("weight", "ends"), "weight": ("x", "ends"), "ends": (), "bias": ("ends",)},
        sharding=_sharding,
        samples=inputs.samples,
        bad_inputs=inputs.bad_inputs,
        benchmarks=inputs.benchmarks,
        function=grouped_linear,
    ),
    Operator(
        name="grouped_linear_backward_x",
        flops=_flops,
        reference=_backward_x_reference,
        fake=_backward_x_fake,
        shapes=("with_last(grad, weight[2])",),
        backward=_backward_x_backward,
        saves={"grad": ("weight", "ends"), "weight": ("grad", "ends"), "ends": ()},
        sharding=_backward_x_sharding,
        samples=inputs.backward_x_samples,
        bad_inputs=inputs.backward_x_bad_inputs,
    ),
    Operator(
        name="grouped_linear_backward_weight",
        flops=_backward_weight_flops,
        reference=_backward_weight_reference,
        fake=_backward_weight_fake,
        shapes=("weight",),
        backward=_backward_weight_backward,
        saves={"grad": ("x", "ends"), "x": ("grad", "ends"), "weight": (), "ends": ()},
        sharding=_backward_weight_sharding,
        samples=inputs.backward_weight_samples,
        bad_inputs=inputs.backward_weight_bad_inputs,
    ),
)
