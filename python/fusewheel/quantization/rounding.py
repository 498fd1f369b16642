"""Rounds floating weights to codes, to the nearest or by the error of the outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from fusewheel.quantization.formats import (
    Int4Weight,
    Int8Weight,
    check_group_size,
    packed_numbers,
)

# The number of elements in a step, so that temporaries stay in the cache and are small.
_CHUNK = 2**18
# A smaller scale would have fewer than 8 significant bits in float16.
_SMALLEST_HALF_SCALE = 2.0**-17
# The number of ranges that calibration tries for a group, in equal steps down to the smallest.
_SHRINKS = 9
_SMALLEST_RANGE = 0.6
# An error counts as smaller below this factor, because float32 sums are not exact.
_IMPROVEMENT = 1 - 1e-4


def quantize_int8(
    weight: Tensor, group_size: int | None = None, scale_dtype: torch.dtype | None = None
) -> Int8Weight:
    """Rounds a weight to `code * scale` with int8 codes and `scale = max(abs(w)) / 127` per group.

    The codes are the nearest ones for the scale as it is stored, and never -128.

    Source: symmetric round-to-nearest quantisation, as in Dettmers et al., "LLM.int8()" (2022).

    Args:
        weight: `[N, K]`, any floating dtype, finite.
        group_size: in features that share a scale, a multiple of 32 that divides K; default None,
            which means one scale for each out feature.
        scale_dtype: the dtype of the scales; default None, which means float16, or float32 if a
            scale is beyond float16.

    Returns:
        The codes `[N, K]`, int8, and the scales: `[N]` without `group_size`, otherwise
        `[N, K / group_size]`.

    Raises:
        ValueError: `weight` is not a matrix, is not floating, or has NaN or infinity; `group_size`
            is not as above; or a scale is beyond `scale_dtype`.
    """
    columns = _check_weight("quantize_int8", weight)
    if group_size is not None and (group_size < 32 or group_size % 32 or columns % group_size):
        raise ValueError(
            "quantize_int8: group_size must be a multiple of 32 that divides the "
            f"{columns} in features, got {group_size}"
        )
    size = group_size or columns
    grouped = weight.detach().unflatten(1, (columns // size, size))
    low, high = _range("quantize_int8", grouped)
    (scales,) = _stored("quantize_int8", scale_dtype, torch.maximum(-low, high) / 127)
    codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    for rows in _chunks(weight):
        wide, scale = _wide(grouped[rows]), _wide(scales[rows]).unsqueeze(-1)
        nearest = torch.round(wide / _divisor(scale)).clamp_(-127, 127)
        codes[rows] = nearest.flatten(1).to(torch.int8)
    return Int8Weight(codes, scales if group_size else scales.squeeze(1))


def quantize_int4(
    weight: Tensor,
    group_size: int = 32,
    importance: Tensor | None = None,
    scale_dtype: torch.dtype | None = None,
) -> Int4Weight:
    """Rounds a weight to `code * scale + zero` with codes 0 to 15, for each group of in features.

    Without `importance` the codes span the group: `zero = min(w)`, `scale = (max(w) - zero) / 15`.
    With `importance`, ranges down to 0.6 of that are tried, and for each also the scale and zero
    that fit its codes best in least squares. The try with the least
    `sum(importance * (w - w_hat) ** 2)` is taken, so this error is never larger than without
    `importance`. This sum is the expected square error of the layer's output if the in features are
    uncorrelated. The codes are the nearest ones for scale and zero as they are stored.

    Source: the error is that of GGUF's importance matrix; the fit is that of `make_qkx2_quants` in
    llama.cpp's ggml.

    Args:
        weight: `[N, K]`, any floating dtype, finite.
        group_size: in features that share scale and zero: 32 (default), 64 or 128; it divides K.
        importance: `[K]`, the mean square of each in feature, see `calibrate`; default None.
        scale_dtype: the dtype of scales and zeros; default None, which means float16, or float32 if
            one is beyond float16.

    Returns:
        The packed codes `[N, K / 2]`, uint8; scales and zeros `[N, K / group_size]`; `group_size`.

    Raises:
        ValueError: `weight` is not a matrix, is not floating, or has NaN or infinity; `group_size`
            is not as above; `importance` has another shape, is negative or not finite; or a scale
            is beyond `scale_dtype`.
    """
    columns = _check_weight("quantize_int4", weight)
    if columns % check_group_size("quantize_int4", group_size):
        raise ValueError(
            f"quantize_int4: the {columns} in features must be a multiple of group_size, "
            f"{group_size}"
        )
    grouped = weight.detach().unflatten(1, (columns // group_size, group_size))
    low, high = _range("quantize_int4", grouped)
    scales, zeros = _stored("quantize_int4", scale_dtype, high / 15 - low / 15, low)
    weights = None
    if importance is not None:
        weights = _check_importance(importance, columns).to(low)
        weights = weights.view(grouped.shape[1:])
    codes = torch.empty((weight.shape[0], columns // 2), dtype=torch.uint8, device=weight.device)
    for rows in _chunks(weight):
        group = _wide(grouped[rows])
        best, scales[rows], zeros[rows] = _fit(group, low[rows], high[rows], weights, scales.dtype)
        codes[rows] = packed_numbers(best.flatten(1))
    return Int4Weight(codes, scales, zeros, group_size)


def _fit(
    group: Tensor, low: Tensor, high: Tensor, importance: Tensor | None, stored: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scale and zero of each group; scale and zero in the dtype in which they are stored."""
    best = _span(group, low, high, stored)
    if importance is None:
        return best
    error = _error(group, best, importance)
    middle, half = (high + low) / 2, (high - low) / 2
    for part in torch.linspace(1, _SMALLEST_RANGE, _SHRINKS).tolist():
        candidate = _span(group, middle - part * half, middle + part * half, stored)
        for trial in (candidate, _least_squares(group, candidate[0], importance, stored)):
            found = _error(group, trial, importance)
            # A fit may exceed the range of the stored dtype. Its error is NaN or infinite then.
            better = found < error * _IMPROVEMENT
            error = torch.where(better, found, error)
            best = (
                torch.where(better.unsqueeze(-1), trial[0], best[0]),
                torch.where(better, trial[1], best[1]),
                torch.where(better, trial[2], best[2]),
            )
    return best


def _span(
    group: Tensor, low: Tensor, high: Tensor, stored: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    zero = low.to(stored)
    # The stored zero may be larger than all values of a group, hence the clamp.
    scale = (high / 15 - _wide(zero) / 15).clamp(min=0).to(stored)
    return _nearest(group, scale, zero), scale, zero


def _nearest(group: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    divisor = _divisor(_wide(scale)).unsqueeze(-1)
    return (group - _wide(zero).unsqueeze(-1)).div_(divisor).round_().clamp_(0, 15)


def _least_squares(
    group: Tensor, codes: Tensor, importance: Tensor, stored: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The scale and zero that fit these codes best, and the nearest codes for these two."""
    total = importance.sum(-1)
    mean_code = (importance * codes).sum(-1) / total
    mean = (importance * group).sum(-1) / total
    offset = codes - mean_code.unsqueeze(-1)
    slope = (importance * offset * group).sum(-1) / (importance * offset * offset).sum(-1)
    scale = slope.to(stored)
    zero = (mean - _wide(scale) * mean_code).to(stored)
    return _nearest(group, scale, zero), scale, zero


def _error(group: Tensor, trial: tuple[Tensor, Tensor, Tensor], importance: Tensor) -> Tensor:
    codes, scale, zero = trial
    difference = codes * _wide(scale).unsqueeze(-1) + _wide(zero).unsqueeze(-1) - group
    return (importance * difference.square_()).sum(-1)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _divisor(scale: Tensor) -> Tensor:
    # A group of equal values has scale 0, and its codes become 0.
    return torch.where(scale == 0, torch.inf, scale)


def _chunks(weight: Tensor) -> list[slice]:
    rows = max(1, _CHUNK // max(1, weight.shape[1]))
    return [slice(start, start + rows) for start in range(0, weight.shape[0], rows)]


def _range(what: str, grouped: Tensor) -> tuple[Tensor, Tensor]:
    low, high = (_wide(t) for t in (grouped.amin(-1), grouped.amax(-1)))
    finite = (low.isfinite() & high.isfinite()).all(-1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise ValueError(f"{what}: weight must be finite, got NaN or infinity in row {row}")
    return low, high


def _stored(what: str, dtype: torch.dtype | None, scales: Tensor, *zeros: Tensor) -> list[Tensor]:
    """The scales, and maybe zeros, in a dtype that can hold them."""
    wanted = dtype or torch.float16
    if _fits(wanted, scales, *zeros):
        return [t.to(wanted) for t in (scales, *zeros)]
    if dtype is None and _fits(torch.float32, scales, *zeros):
        return [t.to(torch.float32) for t in (scales, *zeros)]
    raise ValueError(
        f"{what}: weight has scales from {scales[scales > 0].min().item():.2g} to "
        f"{scales.max().item():.2g}, which {wanted} cannot hold; use scale_dtype=torch.float32"
    )


def _fits(dtype: torch.dtype, scales: Tensor, *zeros: Tensor) -> bool:
    smallest = _SMALLEST_HALF_SCALE if dtype == torch.float16 else torch.finfo(dtype).tiny
    large = all(bool(t.to(dtype).isfinite().all()) for t in (scales, *zeros))
    return large and not bool(((scales > 0) & (scales < smallest)).any())


def _check_weight(what: str, weight: Tensor) -> int:
    if weight.dim() != 2 or not weight.is_floating_point() or weight.shape[1] == 0:
        raise ValueError(
            f"{what}: weight must be a floating matrix [out features, in features], got "
            f"{weight.dtype} of shape {list(weight.shape)}"
        )
    return weight.shape[1]


def _check_importance(importance: Tensor, columns: int) -> Tensor:
    if importance.shape != (columns,):
        raise ValueError(
            f"quantize_int4: importance must have shape [{columns}], got {list(importance.shape)}"
        )
    if not bool((importance.isfinite() & (importance >= 0)).all()):
        raise ValueError("quantize_int4: importance must be finite and not negative")
    return importance.detach()
