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
    """Gate and up are two tensors in a file, and one parameter in transformers."""
    count, *sizes = experts.down_proj.shape
    outputs, inputs = reversed(sizes) if experts.is_transposed else sizes
    layers: dict[str, GroupedBlocks | GroupedFloats] = {}
    for part, rows, columns in (
        ("gate", inputs, outputs),
        ("up", inputs, outputs),
        ("down", outputs, inputs),
    ):
        layer, bias = f"{name}.{part}_proj", None
        if experts.has_bias:
            key = tensors.key(f"{layer}.bias")
            bias = tensors.floating(key, torch.Size((count, rows)), dtype)
        key, shape = tensors.key(f"{layer}.weight"), torch.Size((count, rows, columns))
        kind = tensors.kind(key)
        if kind is None:
            weight = tensors.floating(key, shape, dtype)
            layers[part] = GroupedFloats(weight, bias)
        else:
            layers[part] = GroupedBlocks(tensors.stored(key, shape), kind, bias)
    replaced = QuantizedExperts(experts, layers["up"], layers["down"], layers["gate"])
    model.set_submodule(name, replaced)
