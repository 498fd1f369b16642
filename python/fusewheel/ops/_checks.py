"""What operators refuse, in the words of their kernels.

A kernel checks its arguments in C++ (`packages/schema/include/fusewheel/check.h` and the headers
beside it). Its fake makes the same checks with these functions, which have the names of those in
C++. So a call that a kernel refuses is refused when it is traced, in the same words.
`tests/ops/test_fakes.py` compares the two.

Sizes may be symbols. A condition on a size that is only known at run time is checked at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.promise import Argument, check_same_device, fail
from fusewheel.dispatch.symbolic import known
from fusewheel.ops._rows import compute_dtype

_NAMES = {
    getattr(torch, name): name
    for name in (
        *("float32", "bfloat16", "float16", "float64", "uint8", "int8", "int16", "int32", "int64"),
        *("bool", "complex64", "complex128"),
    )
}
_FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check(op: str, condition: Any, message: str) -> None:
    """Raises an error unless a condition on sizes holds."""
    torch._check(condition, lambda: f"{op}: {message}")


def describe(dtype: torch.dtype) -> str:
    """The name of a dtype in a message."""
    return _NAMES.get(dtype, "another dtype")


def check_floating(op: str, argument: Argument) -> None:
    """Raises an error unless the dtype is one that the kernels compute with."""
    name, tensor = argument
    if tensor.dtype not in _FLOATING:
        fail(
            op,
            f"{name} must be float32, bfloat16, float16 or float64, got {describe(tensor.dtype)}",
        )


def check_matches(op: str, argument: Argument, first: Argument) -> None:
    """Raises an error unless dtype and device are those of the first argument."""
    name, tensor = argument
    if tensor.dtype != first[1].dtype:
        wanted, got = describe(first[1].dtype), describe(tensor.dtype)
        fail(op, f"{name} must have the dtype of {first[0]}, {wanted}, got {got}")
    check_same_device(op, argument, first)


def check_sizes(op: str, argument: Argument, expected: Sequence[Any], reason: str) -> None:
    """Raises an error unless the shape is the expected one."""
    name, tensor = argument
    message = f"{name} must have shape {list(expected)} ({reason}), got {list(tensor.shape)}"
    if tensor.dim() != len(expected):
        fail(op, message)
    for size, wanted in zip(tensor.shape, expected, strict=True):
        check(op, size == wanted, message)


def is_expanded(tensor: Tensor) -> bool:
    """Whether elements are repeated by a stride of 0, as far as that is known."""
    sizes = tensor.shape
    pairs = zip(sizes, tensor.stride(), strict=True)
    repeats = any(known(size > 1) and known(stride == 0) for size, stride in pairs)
    return repeats and all(known(size > 0) for size in sizes)


def check_not_expanded(op: str, argument: Argument) -> None:
    """Raises an error if elements of the tensor to be written share memory."""
    name, tensor = argument
    if is_expanded(tensor):
        fail(op, f"{name} must not be an expanded tensor: its elements share memory")


def check_rows(op: str, x: Argument) -> None:
    """Raises an error unless `x` is floating and has at least one dimension."""
    check_floating(op, x)
    if x[1].dim() == 0:
        fail(op, f"{x[0]} must have at least one dimension, got a scalar tensor")


def check_columns(op: str, name: str, column: Tensor | None, x: Argument) -> None:
    """Raises an error unless an argument is None or has one value for each column of `x`."""
    if column is not None:
        check_matches(op, (name, column), x)
        check_sizes(op, (name, column), x[1].shape[-1:], "the input's last dimension")


def check_same(op: str, other: Argument, x: Argument) -> None:
    """Raises an error unless shape, dtype and device are those of `x`."""
    check_matches(op, other, x)
    check_sizes(op, other, x[1].shape, "the input's shape")


def check_statistic(op: str, statistic: Argument, x: Tensor) -> None:
    """Raises an error unless a tensor has one value for each row of `x`, in `compute_dtype(x)`."""
    check_floating(op, statistic)
    name, tensor = statistic
    reason = "the input's shape without its last dimension"
    check_sizes(op, statistic, x.shape[:-1], reason)
    dtype = compute_dtype(x)
    if tensor.dtype != dtype or tensor.device != x.device:
        wanted, got = describe(dtype), describe(tensor.dtype)
        fail(op, f"{name} must be {wanted} on {x.device}, got {got} on {tensor.device}")


def check_matrix(op: str, weight: Argument) -> None:
    """Raises an error unless the weight of a linear layer is a matrix."""
    name, tensor = weight
    if tensor.dim() != 2:
        shape = list(tensor.shape)
        fail(op, f"{name} must be a matrix [out features, in features], got shape {shape}")


def check_weight_dtype(op: str, weight: Argument, x: Argument) -> None:
    """Raises an error if the weight is not floating, or is float64 and `x` is not."""
    check_floating(op, weight)
    if weight[1].dtype == torch.float64 and x[1].dtype != torch.float64:
        got = describe(x[1].dtype)
        fail(op, f"{weight[0]} may be float64 only where {x[0]} is, got {x[0]} in {got}")


def check_weight(op: str, weight: Argument, x: Argument) -> None:
    """Raises an error unless the weight of a linear layer is a floating matrix."""
    check_same_device(op, weight, x)
    check_weight_dtype(op, weight, x)
    check_matrix(op, weight)


def check_features(op: str, x: Argument, features: Any, what: str) -> None:
    """Raises an error unless the last dimension of `x` has this many elements."""
    name, tensor = x
    shape = list(tensor.shape)
    message = f"{name} must have {features} elements in its last dimension ({what}), got shape"
    if not shape:
        fail(op, f"{message} []")
    check(op, shape[-1] == features, f"{message} {shape}")


def check_bias(op: str, bias: Tensor | None, features: Any, x: Argument) -> None:
    """Raises an error unless a bias is None or has one value for each out feature."""
    if bias is not None:
        check_same_device(op, ("bias", bias), x)
        check_weight_dtype(op, ("bias", bias), x)
        check_sizes(op, ("bias", bias), (features,), "out features")
