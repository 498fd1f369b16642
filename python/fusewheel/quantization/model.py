"""Quantises the linear layers and experts of a model in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fusewheel._core.arguments import require_module
from fusewheel._core.mapped import MappedFiles
from fusewheel._core.progress import progress
from fusewheel._torch.modules import HOOKS
from fusewheel.ops.linear._blocks import FORMATS
from fusewheel.quantization.block_modules import LinearBlocks
from fusewheel.quantization.block_rounding import KINDS as BLOCK_KINDS
from fusewheel.quantization.block_rounding import RoundedKind
from fusewheel.quantization.choice import Filter, OldFilter, chosen
from fusewheel.quantization.experts import QuantizedExperts, is_experts, obstacle
from fusewheel.quantization.formats import check_group_size
from fusewheel.quantization.modules import LinearInt4, LinearInt8
from fusewheel.quantization.report import QuantizationReport, Skip, Swap

# The kinds of stored blocks, by the name of their format.
_BLOCKS: dict[str, RoundedKind] = {name.lower(): name for name in BLOCK_KINDS}
Kind = Literal["int4", "int8", "nf4", "fp4", "mxfp4", "fp8", "q4_1", "q8_0"]
_KINDS: tuple[str, ...] = get_args(Kind)
# Experts have blocks of every kind.
_OF_EXPERTS: dict[str, RoundedKind] = {"int4": "Q4_1", "int8": "Q8_0", **_BLOCKS}
# Their forward reads the weights of their linear layers itself.
_READS_WEIGHTS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def quantize_(
    model: nn.Module,
    kind: Kind = "int4",
    group_size: int | None = 0,
    filter_fn: Filter | None = None,
    calibration: Mapping[str, Tensor] | None = None,
    dynamic: bool = False,
    *,
    filter: OldFilter | None = None,
) -> QuantizationReport:
    """Replaces the linear layers of a model by layers with quantised weights, in place.

    The experts of a mixture in transformers are replaced too, by `QuantizedExperts`. They have one
    scale for each 32 in features with `"int4"` and `"int8"`, and do not round their activations.

    It replaces one layer after the other and frees each weight at once; on Linux also the weights
    that transformers maps from a file. If an output layer shares its weight with the embedding, the
    embedding keeps the weight and the layer gets codes of its own. A layer is left alone, with the
    reason in the report, if it is not a plain `torch.nn.Linear`, if it has hooks, or if
    `group_size` does not divide its in features. A model on the device `meta` can be quantised too;
    it can then load the state dictionary of a quantised model.

    Source: `quantize_int4`, `quantize_int8` and `quantize_blocks` have the formulas.

    Args:
        model: the model; other modules are not changed.
        kind: `"int4"` (default) for `LinearInt4`, `"int8"` for `LinearInt8`; `"nf4"`, `"fp4"`,
            `"mxfp4"`, `"fp8"`, `"q4_1"` or `"q8_0"` for `LinearBlocks`.
        group_size: in features that share a scale; default 0, which means 64 for `"nf4"`, `"fp4"`
            and `"fp8"`, and 32 for the others. `"int4"` can have 32, 64 or 128; `"int8"` any
            multiple of 32, or None for one scale for each out feature; for the other kinds it
            cannot be chosen.
        filter_fn: `filter_fn(module, name)` says whether to quantise a layer or the experts of a
            mixture; default None, which means all of them.
        calibration: the result of `calibrate`, for `"int4"` only; default None. Layers that are not
            in it are rounded to nearest.
        dynamic: whether the layers round their activations to int8 too, for `"int4"` and `"int8"`
            only; default False.
        filter: deprecated, `filter(name, module)`; default None. Use `filter_fn`.

    Returns:
        What was replaced, what was not and why, and the bytes of the model before and after.

    Raises:
        TypeError: `model` is not a module, or `filter_fn` cannot be called.
        ValueError: an argument is not as above, `model` itself is a linear layer, or a weight has
            NaN or infinity. In the last case the layers before that one have been replaced.
    """
    require_module("quantize_", model)
    size = _check_arguments(kind, group_size, calibration, dynamic)
    wanted = chosen("quantize_", filter_fn, filter)
    if isinstance(model, nn.Linear):
        raise ValueError(
            "quantize_: model must contain linear layers, got a linear layer; use from_linear"
        )
    known = calibration or {}
    unknown = sorted(set(known) - {name for name, _ in model.named_modules()})
    if unknown:
        raise ValueError(f"quantize_: calibration names layers that the model lacks: {unknown}")
    before = _bytes(model)
    swapped, skipped = [], []
    files = MappedFiles()
    # Names and not layers, because a list of layers would keep all weights until the end.
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) or is_experts(m)]
    places = _places(model)
    for name in progress(names, describe="quantize layers"):
        old = model.get_submodule(name)
        if isinstance(old, nn.Linear):
            reason = _obstacle(model, name, old, kind, size)
        else:
            reason = obstacle(old, _OF_EXPERTS[kind])
        if reason is None and not wanted(old, name):
            reason = "the filter says no"
        if reason is not None:
            skipped.append(Skip(name, reason))
            continue
        bytes_before = _bytes(old)
        layer = _quantized(name, old, kind, size, known.get(name), dynamic)
        swapped.append(Swap(name, bytes_before, _bytes(layer), name in known))
        # Everywhere where the old one is, so that a shared layer stays shared.
        for parent, key in places[id(old)]:
            setattr(parent, key, layer)
        _leave(old, files)
    return QuantizationReport(kind, tuple(swapped), tuple(skipped), before, _bytes(model))


def _check_arguments(
    kind: str, group_size: int | None, calibration: Mapping[str, Tensor] | None, dynamic: bool
) -> int:
    """Checks the arguments; returns the group size, with 0 for one group a row."""
    if kind not in _KINDS:
        raise ValueError(
            f"quantize_: kind must be one of {', '.join(map(repr, _KINDS))}, got '{kind}'"
        )
    if calibration is not None and kind != "int4":
        raise ValueError("quantize_: calibration is for kind 'int4' only")
    if kind in _BLOCKS:
        size = FORMATS[_BLOCKS[kind]].weights
        if dynamic:
            raise ValueError("quantize_: dynamic is for kinds 'int4' and 'int8' only")
        if group_size not in (0, size):
            raise ValueError(f"quantize_: group_size must be {size} for {kind}, got {group_size}")
        return size
    if group_size == 0:
        return 32
    if kind == "int4":
        if group_size is None:
            raise ValueError("quantize_: group_size must be 32, 64 or 128 for int4, got None")
        return check_group_size("quantize_", group_size)
    if group_size is None:
        return 0
    if not isinstance(group_size, int) or group_size < 32 or group_size % 32:
        raise ValueError(f"quantize_: group_size must be a multiple of 32, got {group_size}")
    return group_size


def _obstacle(
    model: nn.Module, name: str, linear: nn.Linear, kind: str, group_size: int
) -> str | None:
    """Why a layer cannot be replaced; None if it can."""
    if torch.nn.utils.parametrize.is_parametrized(linear):
        return "it is parametrized"
    if type(linear) is not nn.Linear:
        return f"it is a subclass of Linear, {type(linear).__name__}"
    if any(getattr(linear, hooks) for hooks in HOOKS):
        return "it has hooks, which would be lost"
    if "forward" in vars(linear):
        return "its forward was replaced"
    if set(linear._parameters) != {"weight", "bias"} or linear._buffers or linear._modules:
        return "it holds more than a weight and a bias"
    if type(linear.weight) is not nn.Parameter or not linear.weight.is_floating_point():
        return f"its weight is a {type(linear.weight).__name__} of {linear.weight.dtype}"
    if isinstance(model.get_submodule(name.rpartition(".")[0]), _READS_WEIGHTS):
        return "its parent reads the weight itself"
    if linear.in_features == 0 or (group_size and linear.in_features % group_size):
        return f"its {linear.in_features} in features are not a multiple of {group_size}"
    return None


def _quantized(
    name: str,
    linear: nn.Module,
    kind: str,
    group_size: int,
    importance: Tensor | None,
    dynamic: bool,
) -> nn.Module:
    try:
        if not isinstance(linear, nn.Linear):
            return QuantizedExperts.from_experts(linear, _OF_EXPERTS[kind])
        if kind in _BLOCKS:
            return LinearBlocks.from_linear(linear, _BLOCKS[kind])
        if kind == "int8":
            return LinearInt8.from_linear(linear, group_size or None, dynamic)
        return LinearInt4.from_linear(linear, group_size, dynamic, importance)
    except ValueError as error:
        raise ValueError(f"quantize_: layer '{name}': {error}") from error


def _places(model: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """The parents of each module and its name there, by the `id` of the module."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for key, child in parent._modules.items():
            found.setdefault(id(child), []).append((parent, key))
    return found


def _leave(module: nn.Module, files: MappedFiles) -> None:
    """Give back the memory of weights in a file: one that stays in use keeps all of it mapped."""
    for tensor in module.parameters():
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            files.leave(tensor.data_ptr(), tensor.nbytes)


def _bytes(module: nn.Module) -> int:
    return sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
