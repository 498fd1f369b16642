"""Gives the modules of a model the tensors of a GGUF file."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from fusewheel.quantization.block_modules import EmbeddingBlocks, LinearBlocks
from fusewheel.quantization.experts import (
    GroupedBlocks,
    GroupedFloats,
    QuantizedExperts,
    is_experts,
)
from fusewheel.quantization.gguf.tensors import Tensors


def fill(model: nn.Module, tensors: Tensors, dtype: torch.dtype) -> None:
    """Gives every parameter its tensor.

    Modules whose weights are stored in blocks are replaced by those that multiply by blocks.

    Raises:
        ValueError: the file lacks a tensor, or stores one in a way that is not supported.
    """
    for name, module in list(model.named_modules()):
        if is_experts(module):
            _fill_experts(model, name, module, tensors, dtype)
        elif module._parameters:
            _fill_module(model, name, module, tensors, dtype)


def _fill_module(
    model: nn.Module, name: str, module: nn.Module, tensors: Tensors, dtype: torch.dtype
) -> None:
    own = {n: p for n, p in module._parameters.items() if p is not None}
    keys = {parameter: tensors.key(f"{name}.{parameter}") for parameter in own}
    kind = tensors.kind(keys["weight"]) if "weight" in keys else None
    for parameter, key in keys.items():
        if kind is None or parameter != "weight":
            value = tensors.floating(key, own[parameter].shape, dtype)
            module.register_parameter(parameter, Parameter(value))
    if kind is None:
        return
    shape = own["weight"].shape
    if isinstance(module, nn.Embedding):
        blocks = tensors.stored(keys["weight"], shape)
        scale = getattr(module, "scalar_embed_scale", None)
        model.set_submodule(name, EmbeddingBlocks(blocks, kind, dtype, scale))
    elif type(module) is nn.Linear:
        blocks = tensors.stored(keys["weight"], shape)
        model.set_submodule(name, LinearBlocks(blocks, kind, module.bias))
    else:
        raise ValueError(
            f"load_gguf: {tensors.file.path} stores {keys['weight']!r} in {kind}, which is not "
            f"supported for a {type(module).__name__}"
        )


def _fill_experts(
    model: nn.Module, name: str, experts: Any, tensors: Tensors, dtype: torch.dtype
) -> None:
    """Gate and up are two tensors in a file and one parameter in transformers.

    They become one again, which is a single product, unless they are of two kinds.
    """
    count, *sizes = experts.down_proj.shape
    outputs, inputs = reversed(sizes) if experts.is_transposed else sizes

    def layers(rows: int, columns: int, *parts: str) -> GroupedBlocks | GroupedFloats:
        keys = [tensors.key(f"{name}.{part}_proj.weight") for part in parts]
        shape, kind, bias = torch.Size((count, rows, columns)), tensors.kind(keys[0]), None
        if experts.has_bias:
            own = [tensors.key(f"{name}.{part}_proj.bias") for part in parts]
            biases = [tensors.floating(key, torch.Size((count, rows)), dtype) for key in own]
            bias = torch.stack(biases, -1).flatten(1) if by_turns else torch.cat(biases, 1)
        if len(parts) > 1:
            weight = tensors.joined(keys, shape, dtype, by_turns)
        elif kind is None:
            weight = tensors.floating(keys[0], shape, dtype)
        else:
            weight = tensors.stored(keys[0], shape)
        return GroupedFloats(weight, bias) if kind is None else GroupedBlocks(weight, kind, bias)

    by_turns = not getattr(experts, "is_concatenated", True)
    kinds = {tensors.kind(tensors.key(f"{name}.{part}_proj.weight")) for part in ("gate", "up")}
    if len(kinds) == 1:
        up, gate = layers(inputs, outputs, "gate", "up"), None
    else:
        up, gate = layers(inputs, outputs, "up"), layers(inputs, outputs, "gate")
    down = layers(outputs, inputs, "down")
    model.set_submodule(name, QuantizedExperts(experts, up, down, gate))
