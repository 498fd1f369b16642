"""Helpers of linear layers with quantised weights: decoding, rounding of activations, samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import BadInput, Make
from fusewheel.dispatch.promise import Argument, check_same_device, fail
from fusewheel.dispatch.symbolic import known
from fusewheel.ops._checks import (
    check,
    check_matches,
    check_matrix,
    check_sizes,
    check_weight_dtype,
    describe,
)
from fusewheel.ops._rows import compute_dtype

INT4_BLOCK = 32
"""The elements of a block of 4-bit weights. The two codes of a byte are half a block apart, and
activations are rounded in groups of this size.
"""


def unpack(qweight: Tensor) -> Tensor:
    """The codes `[..., K]`, uint8, of packed 4-bit weights `[..., K / 2]`."""
    half = INT4_BLOCK // 2
    blocks = qweight.unflatten(-1, (qweight.shape[-1] // half, half))
    return torch.cat((blocks & 15, blocks >> 4), dim=-1).flatten(-2)


def groups_of(scales: Tensor) -> int:
    """How many scales a row of an int8 weight has."""
    return scales.shape[1] if scales.dim() == 2 else 1


def decode_int8(qweight: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight `[N, K]`, computed in `dtype`."""
    rows, columns = qweight.shape
    groups = groups_of(scales)
    codes = qweight.to(dtype).view(rows, groups, columns // groups)
    return (codes * scales.to(dtype).reshape(rows, groups, 1)).flatten(1)


def decode_int4(
    qweight: Tensor, scales: Tensor, zeros: Tensor, group_size: int, dtype: torch.dtype
) -> Tensor:
    """The weight `[N, K]`, computed in `dtype`."""
    codes = unpack(qweight).to(dtype)
    codes = codes.unflatten(1, (codes.shape[1] // group_size, group_size))
    return (codes * scales.to(dtype).unsqueeze(-1) + zeros.to(dtype).unsqueeze(-1)).flatten(1)


def rounded(x: Tensor, group_size: int) -> Tensor:
    """`x [..., K]` in float32, rounded to 255 steps per group of features.

    With `amax` the largest magnitude of a group, `step = amax / 127` and
    `code = round(x * (127 / amax))`, halves to even. The gradient is that of the unrounded `x`.
    float64 is not rounded.
    """
    if x.dtype == torch.float64 or x.shape[-1] == 0:
        return x
    wide = x.float()
    grouped = wide.detach().unflatten(-1, (x.shape[-1] // group_size, group_size))
    amax = grouped.abs().amax(-1, keepdim=True)
    inverse = 127 / amax
    # The group is all zeros, or so small that 127 / amax overflows.
    inverse = torch.where(inverse.isinf(), 0, inverse)
    codes = torch.round(grouped * inverse).clamp(-127, 127)
    return (codes * (amax / 127)).flatten(-2) + (wide - wide.detach())


def apply_linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A linear layer in the weight's dtype, rounded once to `dtype`."""
    offset = None if bias is None else bias.to(weight.dtype)
    return torch.nn.functional.linear(x.to(weight.dtype), weight, offset).to(dtype)


def apply_backward(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a linear layer's input, computed in the weight's dtype."""
    return (grad.to(weight.dtype) @ weight).to(grad.dtype)


def bias_gradient(grad: Tensor, bias: Tensor) -> Tensor:
    """The gradient of a linear layer's bias, summed in the accumulation dtype."""
    return grad.to(compute_dtype(grad)).sum_to_size(bias.shape).to(bias.dtype)


def check_codes(op: str, codes: Tensor, dtype: torch.dtype, x: Argument) -> None:
    """Raises an error unless the codes are a matrix of their dtype."""
    check_same_device(op, ("qweight", codes), x)
    if codes.dtype != dtype:
        fail(op, f"qweight must be {describe(dtype)}, got {describe(codes.dtype)}")
    check_matrix(op, ("qweight", codes))


def _check_scales(op: str, scales: Argument, codes: Tensor, x: Argument) -> None:
    check_same_device(op, scales, ("qweight", codes))
    check_weight_dtype(op, scales, x)


def check_int8(op: str, qweight: Tensor, scales: Tensor, x: Argument) -> None:
    """Raises an error unless codes, scales and `x` fit together."""
    check_codes(op, qweight, torch.int8, x)
    _check_scales(op, ("scales", scales), qweight, x)
    rows, columns = qweight.shape
    message = (
        f"scales must have shape [{rows}] or [{rows}, groups] with groups of a multiple of 32 of "
        f"the {columns} in features, got {list(scales.shape)}"
    )
    if scales.dim() not in (1, 2):
        fail(op, message)
    check(op, scales.shape[0] == rows, message)
    groups = groups_of(scales)
    if not known(groups == 1):
        check(op, groups >= 1, message)
        check(op, columns % groups == 0, message)
        check(op, columns // groups % 32 == 0, message)


def check_int4(
    op: str, qweight: Tensor, scales: Tensor, zeros: Tensor, group_size: int, x: Argument
) -> None:
    """Raises an error unless codes, scales, zeros and `x` fit together."""
    check_codes(op, qweight, torch.uint8, x)
    if group_size not in (32, 64, 128):
        fail(op, f"group_size must be 32, 64 or 128, got {group_size}")
    rows, columns = qweight.shape[0], 2 * qweight.shape[1]
    message = (
        f"qweight must hold a multiple of group_size in features a row ({group_size}), two a byte, "
        f"got shape {list(qweight.shape)}"
    )
    check(op, columns % group_size == 0, message)
    expected, reason = (rows, columns // group_size), "out features, groups of a row"
    _check_scales(op, ("scales", scales), qweight, x)
    check_sizes(op, ("scales", scales), expected, reason)
    _check_scales(op, ("zeros", zeros), qweight, x)
    check_matches(op, ("zeros", zeros), ("scales", scales))
    check_sizes(op, ("zeros", zeros), expected, reason)


def random_codes(make: Make, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Random codes over all values of int8 or uint8."""
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(rows * columns)
    codes = torch.randint(info.min, info.max + 1, (rows, columns), generator=generator)
    return codes.to(dtype).to(make.device)


def random_scales(make: Make, *shape: int) -> Tensor:
    """Random positive scales, about as large as those of a trained layer."""
    return make(*shape, scale=0.01).detach().abs() + 0.01


# Rows, in features, out features: of models of 135 million and of 7 billion parameters.
SIZES = ((1, 576, 1536), (1, 4096, 4096), (32, 4096, 4096), (512, 2048, 2048))


def bad_weights(
    name: str, x: Tensor, weight: tuple[Any, ...], rest: tuple[Any, ...]
) -> Iterator[BadInput]:
    """Inputs that every quantised layer refuses; `weight` is its codes, scales and what follows."""
    codes, scales, *others = weight
    yield BadInput((x.int(), *weight, *rest), f"{name} must be float32.*got int32")
    yield BadInput((x, codes.float(), *weight[1:], *rest), "qweight must be u?int8, got float32")
    yield BadInput((x, codes[0], *weight[1:], *rest), r"qweight must be a matrix \[out features")
    yield BadInput((x, codes, codes, *others, *rest), "scales must be float32.*got u?int8")
    yield BadInput((x[..., 1:], *weight, *rest), f"{name} must have {x.shape[-1]} elements in")
    yield BadInput((x.sum(), *weight, *rest), f"{name} must have {x.shape[-1]} elements in")
    if x.dtype != torch.float64:
        yield BadInput(
            (x, codes, scales.double(), *others, *rest),
            f"scales may be float64 only where {name} is",
        )


def bad_biases(
    x: Tensor, weight: tuple[Any, ...], features: int, dynamic: bool
) -> Iterator[BadInput]:
    """Biases that every quantised layer refuses."""
    bias = x.new_zeros(features)
    yield BadInput((x, *weight, bias[1:], dynamic), rf"bias must have shape \[{features}\]")
    yield BadInput((x, *weight, bias[None], dynamic), rf"bias must have shape \[{features}\]")
    yield BadInput((x, *weight, bias.int(), dynamic), "bias must be float32.*got int32")
    if x.dtype != torch.float64:
        yield BadInput((x, *weight, bias.double(), dynamic), "bias may be float64 only where x is")
