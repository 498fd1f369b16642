"""Rounds floating weights to the codes of stored blocks."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from fusewheel.ops.linear._blocks import FORMATS, FP4, MXFP4, NF4
from fusewheel.quantization.formats import packed

_TABLES: dict[str, tuple[float, ...]] = {"NF4": NF4, "FP4": FP4, "MXFP4": MXFP4}
RoundedKind = Literal["NF4", "FP4", "MXFP4", "FP8", "Q4_1", "Q8_0"]
KINDS: tuple[RoundedKind, ...] = get_args(RoundedKind)
"""The formats to which `quantize_blocks` rounds."""
_LARGEST_FP8 = 448.0
# Rows are rounded a few at a time, so that temporaries stay small.
_CHUNK = 2**18


def quantize_blocks(weight: Tensor, kind: RoundedKind) -> Tensor:
    """Rounds a weight to the nearest codes of a block format.

    | kind | weights that share a scale | scale |
    |---|---|---|
    | `"NF4"`, `"FP4"` | 64 | `max(abs(w))`, float32 |
    | `"MXFP4"` | 32 | the power of two `2 ** (floor(log2(max(abs(w)))) - 2)`; larger than 6 times it is rounded to 6 times it |
    | `"FP8"` | 64 | `max(abs(w)) / 448`, float32 |
    | `"Q4_1"` | 32 | `(max(w) - min(w)) / 15`, float16, and `min(w)`, which is added |
    | `"Q8_0"` | 32 | `max(abs(w)) / 127`, float16 |

    Source: Dettmers et al., "QLoRA" (2023), for NF4; bitsandbytes for FP4; the Open Compute
    Project's "Microscaling Formats" (2023) for MXFP4; `quantize_int4` and `quantize_int8` for the
    last two, whose codes are those.

    Args:
        weight: `[N, K]`, any floating dtype, finite; K is a multiple of the weights that share a
            scale.
        kind: one of the above.

    Returns:
        Blocks `[N, K / weights, bytes]`, uint8, for `linear_blocks`.

    Raises:
        ValueError: `kind` is another, `weight` is not as above, or a scale is beyond float16.
    """  # noqa: E501
    if kind not in KINDS:
        raise ValueError(f"quantize_blocks: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    size = FORMATS[kind].weights
    if weight.dim() != 2 or not weight.is_floating_point() or weight.shape[1] % size:
        raise ValueError(
            "quantize_blocks: weight must be a floating matrix [out features, in features] with in "
            f"features a multiple of {size}, got {weight.dtype} of shape {list(weight.shape)}"
        )
    rows, columns = weight.shape
    shape = rows, columns // size, FORMATS[kind].bytes
    blocks = torch.empty(shape, dtype=torch.uint8, device=weight.device)
    step = max(1, _CHUNK // max(1, columns))
    for start in range(0, rows, step):
        part = weight.detach()[start : start + step].float().contiguous()
        part = part.unflatten(1, (columns // size, size))
        if not bool(part.isfinite().all()):
            raise ValueError("quantize_blocks: weight must be finite, got NaN or infinity")
        blocks[start : start + step] = _rounded(part, kind)
    return blocks


def _rounded(groups: Tensor, kind: str) -> Tensor:
    """Blocks `[..., bytes]` of weights `[..., weights]`."""
    if kind in ("Q4_1", "Q8_0"):
        return _rounded_by_halves(groups, kind)
    largest = groups.abs().amax(-1, keepdim=True)
    if kind == "MXFP4":
        # frexp is exact where a logarithm is not.
        exponent = (torch.frexp(largest)[1] + 124).clamp(0, 254)
        scale = torch.ldexp(torch.ones_like(largest), exponent - 128)
        stored = exponent.to(torch.uint8)
    else:
        scale = largest / _LARGEST_FP8 if kind == "FP8" else largest
        stored = scale.view(torch.uint8)
    # A group of zeros has scale 0, and codes for 0.
    values = groups / torch.where(scale == 0, 1, scale)
    if kind == "FP8":
        codes = values.clamp(-_LARGEST_FP8, _LARGEST_FP8).to(torch.float8_e4m3fn)
        return torch.cat((stored, codes.view(torch.uint8)), -1)
    return torch.cat((stored, packed(_nearest(values, _TABLES[kind]))), -1)


def _rounded_by_halves(groups: Tensor, kind: str) -> Tensor:
    """Likewise of a format whose scales are float16; codes are the nearest for the stored scale."""
    if kind == "Q8_0":
        scale = (groups.abs().amax(-1, keepdim=True) / 127).half()
        stored = scale
        codes = (groups / _divisor(scale)).round().clamp(-127, 127).to(torch.int8)
        codes = codes.view(torch.uint8)
    else:
        low, high = groups.aminmax(dim=-1, keepdim=True)
        zero = low.half()
        # The stored zero may be larger than all weights of a group.
        scale = (high / 15 - zero.float() / 15).clamp(min=0).half()
        stored = torch.cat((scale, zero), -1)
        codes = ((groups - zero.float()) / _divisor(scale)).round().clamp(0, 15).to(torch.uint8)
        codes = packed(codes)
    if not bool(stored.isfinite().all()):
        raise ValueError(
            f"quantize_blocks: weight must be small enough for the float16 scales of {kind}, got "
            f"{groups.abs().max().item():.3g}"
        )
    return torch.cat((stored.view(torch.uint8), codes), -1)


def _divisor(scale: Tensor) -> Tensor:
    # A group of equal weights has scale 0, and its codes become 0.
    return torch.where(scale == 0, torch.inf, scale.float())


def _nearest(values: Tensor, table: tuple[float, ...]) -> Tensor:
    """The code of the number in the table that is nearest to each value."""
    numbers, codes = torch.tensor(table, device=values.device).sort(stable=True)
    middles = (numbers[1:] + numbers[:-1]) / 2
    return codes[torch.bucketize(values, middles)].to(torch.uint8)
