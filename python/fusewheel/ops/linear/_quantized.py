"""What linear layers with quantised weights share: decoding, rounding of activations, samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fusewheel._operator import BadInput, Make

INT4_BLOCK = 32
"""Codes of one byte of 4-bit weights lie half of this apart; activations are rounded by it."""


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """The dtype a linear layer computes in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


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
    float64 is for exact work: there nothing is rounded.
    """
    if x.dtype == torch.float64 or x.shape[-1] == 0:
        return x
    wide = x.float()
    grouped = wide.detach().unflatten(-1, (x.shape[-1] // group_size, group_size))
    amax = grouped.abs().amax(-1, keepdim=True)
    inverse = 127 / amax
    # A group of zeros, or of numbers so small that they vanish beside any weight.
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
    return grad.to(accumulation_dtype(grad)).sum_to_size(bias.shape).to(bias.dtype)


def empty_linear(op: str, name: str, x: Tensor, taken: int, given: int) -> Tensor:
    """What a layer that takes and gives so many features makes of `x`: contiguous, x's dtype."""
    torch._check(
        x.dim() > 0 and x.shape[-1] == taken,
        lambda: (
            f"{op}: {name} must have {taken} elements in its last dimension, "
            f"got shape {list(x.shape)}"
        ),
    )
    return x.new_empty((*x.shape[:-1], given))


def random_codes(make: Make, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Codes of every value that int8 or uint8 has."""
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(rows * columns)
    codes = torch.randint(info.min, info.max + 1, (rows, columns), generator=generator)
    return codes.to(dtype).to(make.device)


def random_scales(make: Make, *shape: int) -> Tensor:
    """Positive scales about as large as those of a trained layer."""
    return make(*shape, scale=0.01).detach().abs() + 0.01


# Rows and features in and out: models at the size of 135 million and of 7 billion parameters.
SIZES = ((1, 576, 1536), (1, 4096, 4096), (32, 4096, 4096), (512, 2048, 2048))


def bad_weights(
    name: str, x: Tensor, weight: tuple[Any, ...], rest: tuple[Any, ...]
) -> Iterator[BadInput]:
    """What every quantised layer refuses; `weight` is its codes, its scales and what follows."""
    codes, scales, *others = weight
    yield BadInput((x.int(), *weight, *rest), f"{name} must be float32.*got int32")
    yield BadInput((None, *weight, *rest), rf"{name}\b.*(None|NoneType)")
    yield BadInput((x, None, *weight[1:], *rest), r"qweight\b.*(None|NoneType)")
    yield BadInput((x, codes, None, *others, *rest), r"scales\b.*(None|NoneType)")
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
    if x.dtype == torch.float32:
        yield BadInput((x.to_sparse(), *weight, *rest), f"{name} must be a dense tensor")


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
