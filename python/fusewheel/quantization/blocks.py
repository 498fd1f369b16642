"""Takes over the quantised blocks of GGUF files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fusewheel.quantization.formats import Int4Weight, Int8Weight

Kind = Literal["Q4_0", "Q4_1", "Q8_0"]
_BLOCK = 32
_BYTES: dict[Kind, int] = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def from_gguf(data: Any, kind: Kind, shape: Sequence[int]) -> Int4Weight | Int8Weight:
    """Takes over a quantised tensor of a GGUF file without loss: no value changes.

    `"Q4_0"` (`w = d * (code - 8)`) becomes 4-bit codes with `scale = d` and `zero = -8 * d`.
    `"Q4_1"` (`w = d * code + m`) becomes the same with `zero = m`. `"Q8_0"` (`w = d * code`)
    becomes 8-bit codes with a scale for each 32 in features. Scales stay float16, or become float32
    if `-8 * d` overflows float16.

    Source: https://github.com/ggml-org/ggml, `ggml-common.h`.

    Args:
        data: the raw blocks, a uint8 tensor or numpy array; `tensor.data` of the package `gguf`.
        kind: `"Q4_0"`, `"Q4_1"` or `"Q8_0"`.
        shape: `[out features, in features]`; in features are a multiple of 32. (`tensor.shape` of
            the package `gguf` has the reverse order.)

    Returns:
        An `Int4Weight` with groups of 32, or an `Int8Weight`. The tensors are copies.

    Raises:
        ValueError: `kind` is not one of the three, the shape does not fit the data, or a scale is
            not finite.
    """
    if kind not in _BYTES:
        raise ValueError(f"from_gguf: kind must be one of {', '.join(_BYTES)}, got '{kind}'")
    if len(shape) != 2 or shape[1] % _BLOCK:
        raise ValueError(
            "from_gguf: shape must be [out features, in features] with in features a multiple of "
            f"{_BLOCK}, got {list(shape)}"
        )
    # A copy, because an array over a file may be read-only, and tensors do not support that.
    raw = data.clone() if isinstance(data, Tensor) else torch.tensor(data)
    rows, columns = (int(size) for size in shape)
    expected = rows * columns // _BLOCK * _BYTES[kind]
    if raw.dtype != torch.uint8 or raw.numel() != expected:
        raise ValueError(
            f"from_gguf: data must be {expected} bytes (uint8) for {kind} of shape {list(shape)}, "
            f"got {raw.numel()} elements of {raw.dtype}"
        )
    blocks = raw.reshape(rows, columns // _BLOCK, _BYTES[kind])
    scales = _halves(blocks, 0)
    if kind == "Q8_0":
        return Int8Weight(_codes(blocks, 2).view(torch.int8), scales)
    if kind == "Q4_1":
        return Int4Weight(_codes(blocks, 4), scales, _halves(blocks, 2), _BLOCK)
    zeros = -8 * scales
    if not bool(zeros.isfinite().all()):
        scales = scales.float()
        zeros = -8 * scales
    return Int4Weight(_codes(blocks, 2), scales, zeros, _BLOCK)


def _codes(blocks: Tensor, start: int) -> Tensor:
    """The bytes of every block from byte `start` on."""
    return blocks[..., start:].flatten(1).contiguous()


def _halves(blocks: Tensor, start: int) -> Tensor:
    """The float16 number at byte `start` of every block."""
    found = blocks[..., start : start + 2].contiguous().view(torch.float16).squeeze(-1)
    if not bool(found.isfinite().all()):
        raise ValueError("from_gguf: data must hold finite scales, got NaN or infinity")
    return found
