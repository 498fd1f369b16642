"""The tensors of quantised weights: how they are packed, and which weight they stand for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fusewheel.ops.linear._quantized import (
    INT4_BLOCK,
    decode_int4,
    decode_int8,
    groups_of,
    unpack,
)


class Int8Weight(NamedTuple):
    """`w = qweight * scales`; `linear_int8(x, *weight)` uses it.

    Attributes:
        qweight: codes `[N, K]`, int8.
        scales: `[N]`, or `[N, K / group_size]`; a floating dtype.
    """

    qweight: Tensor
    scales: Tensor


class Int4Weight(NamedTuple):
    """`w = code * scale + zero`; `linear_int4(x, *weight)` uses it.

    Attributes:
        qweight: packed codes `[N, K / 2]`, uint8; see `pack_int4`.
        scales: `[N, K / group_size]`; a floating dtype.
        zeros: `[N, K / group_size]`: the weight of code 0; the dtype of `scales`.
        group_size: in features that share a scale: 32, 64 or 128.
    """

    qweight: Tensor
    scales: Tensor
    zeros: Tensor
    group_size: int


def pack_int4(codes: Tensor) -> Tensor:
    """Packs two 4-bit codes into a byte, in the order of GGUF's 4-bit blocks.

    Byte `j` of each 32 elements holds element `j` in its low half and element `16 + j` in its high
    half.

    Args:
        codes: `[..., K]`, any integer dtype, values 0 to 15; K is a multiple of 32.

    Returns:
        `[..., K / 2]`, uint8.

    Raises:
        ValueError: a code is not 0 to 15, or K is not a multiple of 32.
    """
    if codes.dim() == 0 or codes.shape[-1] % INT4_BLOCK != 0:
        raise ValueError(
            f"pack_int4: codes must have a multiple of {INT4_BLOCK} elements in their last "
            f"dimension, got shape {list(codes.shape)}"
        )
    if codes.is_floating_point():
        raise ValueError(f"pack_int4: codes must be integers, got {codes.dtype}")
    if codes.numel() and (int(codes.min()) < 0 or int(codes.max()) > 15):
        raise ValueError("pack_int4: codes must be 0 to 15")
    return packed(codes.to(torch.uint8))


def packed(codes: Tensor) -> Tensor:
    """`pack_int4` without checks of the codes."""
    blocks = codes.unflatten(-1, (codes.shape[-1] // INT4_BLOCK, 2, INT4_BLOCK // 2))
    low, high = blocks.unbind(-2)
    return (low | (high << 4)).flatten(-2)


def packed_numbers(codes: Tensor) -> Tensor:
    """`packed` of codes in a floating dtype: to convert bytes to integers is half the work."""
    blocks = codes.unflatten(-1, (codes.shape[-1] // INT4_BLOCK, 2, INT4_BLOCK // 2))
    low, high = blocks.unbind(-2)
    return torch.add(low, high, alpha=16).to(torch.uint8).flatten(-2)


def unpack_int4(qweight: Tensor) -> Tensor:
    """The inverse of `pack_int4`.

    Args:
        qweight: `[..., K / 2]`, uint8; K is a multiple of 32.

    Returns:
        `[..., K]`, uint8, values 0 to 15.

    Raises:
        ValueError: `qweight` is not uint8, or K is not a multiple of 32.
    """
    if qweight.dtype != torch.uint8:
        raise ValueError(f"unpack_int4: qweight must be uint8, got {qweight.dtype}")
    if qweight.dim() == 0 or qweight.shape[-1] % (INT4_BLOCK // 2) != 0:
        raise ValueError(
            f"unpack_int4: qweight must have a multiple of {INT4_BLOCK // 2} bytes in its last "
            f"dimension, got shape {list(qweight.shape)}"
        )
    return unpack(qweight)


def dequantize_int8(qweight: Tensor, scales: Tensor) -> Tensor:
    """`qweight * scales`, the weight that `linear_int8` multiplies by.

    Args:
        qweight: `[N, K]`, int8.
        scales: `[N]` or `[N, groups]`, any floating dtype.

    Returns:
        `[N, K]`, float32, or float64 if `scales` is float64.

    Raises:
        ValueError: the shapes do not fit together.
    """
    rows, columns = qweight.shape
    if scales.shape[:1] != (rows,) or scales.dim() > 2 or columns % max(groups_of(scales), 1):
        raise ValueError(
            f"dequantize_int8: scales must have shape [{rows}] or [{rows}, groups] with groups "
            f"that divide {columns}, got {list(scales.shape)}"
        )
    return decode_int8(qweight, scales, torch.promote_types(scales.dtype, torch.float32))


def dequantize_int4(qweight: Tensor, scales: Tensor, zeros: Tensor, group_size: int = 32) -> Tensor:
    """`code * scale + zero`, the weight that `linear_int4` multiplies by.

    Args:
        qweight: `[N, K / 2]`, uint8.
        scales: `[N, K / group_size]`, any floating dtype.
        zeros: `[N, K / group_size]`, the dtype of `scales`.
        group_size: 32 (default), 64 or 128.

    Returns:
        `[N, K]`, float32, or float64 if `scales` is float64.

    Raises:
        ValueError: the shapes do not fit together, or `group_size` is not one of the three.
    """
    rows, columns = qweight.shape[0], 2 * qweight.shape[1]
    expected = (rows, columns // check_group_size("dequantize_int4", group_size))
    if columns % group_size or scales.shape != expected or zeros.shape != expected:
        raise ValueError(
            f"dequantize_int4: scales and zeros must have shape {list(expected)} for {columns} in "
            f"features, got {list(scales.shape)} and {list(zeros.shape)}"
        )
    wide = torch.promote_types(scales.dtype, torch.float32)
    return decode_int4(qweight, scales, zeros, group_size, wide)


def check_group_size(what: str, group_size: int) -> int:
    """Returns `group_size`; raises ValueError if 4-bit weights cannot have it."""
    if group_size not in (32, 64, 128):
        raise ValueError(f"{what}: group_size must be 32, 64 or 128, got {group_size}")
    return group_size
