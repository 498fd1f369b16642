"""Reads the arguments of a call of a language model: tokens, their positions and a cache."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.autograd import in_forward_mode
from fusewheel._torch.dispatcher import is_direct
from fusewheel.compiler.match.switches import disabled

# The argument that says which tokens are padding: those of the cache and the new ones.
MASK = "attention_mask"
_PLAIN = frozenset((int, bool, str, type(None)))


@dataclass(frozen=True)
class LanguageCall:
    """The arguments of a call.

    Attributes:
        kind: what its operations depend on.
        tensors: of tokens, by the name of the argument.
        name: of the argument that is the cache.
        cache: the cache.
        past: the rows in it.
    """

    kind: tuple[Any, ...]
    tensors: dict[str, Tensor]
    name: str
    cache: Any
    past: int


def read_call(arguments: Mapping[str, Any]) -> LanguageCall | None:
    """A call of a model, if it has no other arguments, records no gradient, and nobody watches."""
    caches = sys.modules.get("transformers.cache_utils")
    if caches is None or torch.is_grad_enabled() or in_forward_mode() or not is_direct():
        return None
    kind: list[Any] = [torch.get_default_dtype(), disabled()]
    tensors: dict[str, Tensor] = {}
    cache, cache_name, count = None, "", 0
    mask: Tensor | None = None
    for name, value in arguments.items():
        of = type(value)
        if name == MASK and of is Tensor and _is_tokens(value):
            mask = value
        elif of is Tensor and _is_tokens(value):
            rows, tokens = value.shape
            if count not in (0, tokens):
                return None
            count = tokens
            tensors[name] = value.contiguous()
            kind.append((name, rows))
        elif of in _PLAIN:
            kind.append((name, of, value))
        elif of is caches.DynamicCache and cache is None and not value.offloading:
            cache, cache_name = value, name
        else:
            return None
    past = None if cache is None else _past(cache.layers, caches.DynamicLayer)
    if past is None or not count:
        return None
    rows, shapes = past
    if mask is not None:
        if mask.shape[1] != rows + count:
            return None
        tensors[MASK] = mask.contiguous()
        kind.append((MASK, mask.shape[0]))
    # A size of 1 is a case of its own: it broadcasts.
    kind += [min(count, 2), cache_name, min(rows, 2), shapes]
    return LanguageCall(tuple(kind), tensors, cache_name, cache, rows)


def grown_strides(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The strides of a cache that a program made, see `fusewheel.engine.growing`."""
    batch, heads, _, size = shape
    return heads * size, size, batch * heads * size, 1


def grown_rows(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """The keys and values of each `DynamicCache` among the arguments of a call."""
    caches = sys.modules.get("transformers.cache_utils")
    for value in arguments:
        if caches is None or not is_exactly(value, caches.DynamicCache):
            continue
        for layer in value.layers:
            if is_exactly(layer, caches.DynamicLayer) and layer.is_initialized:
                yield layer.keys
                yield layer.values


def _is_tokens(tensor: Tensor) -> bool:
    whole = tensor.dtype is torch.int64 and tensor.dim() == 2
    return whole and tensor.device.type == "cpu" and tensor.numel() > 0


def is_exactly(value: object, kind: type) -> bool:
    """Whether a value is of this class and not of one that inherits from it."""
    return type(value) is kind


def _past(layers: list[Any], kind: Any) -> tuple[int, tuple[Any, ...]] | None:
    """The rows of a cache and the shapes of its layers, if it is empty or grew in a program."""
    first: Any = None
    layer: Any
    for number, layer in enumerate(layers):
        own = None
        if not is_exactly(layer, kind):
            return None
        if layer.is_initialized:
            keys, values = layer.keys, layer.values
            if type(keys) is not Tensor or type(values) is not Tensor:
                return None
            own = (*_layout(keys), *_layout(values))
        if not number:
            first = own
        elif own != first:
            return None
    if first is None:
        return (0, (len(layers),)) if layers else None
    shape, strides, dtype, other, other_strides, other_dtype = first
    if len(shape) != 4 or not shape[2] or shape[:3] != other[:3]:
        return None
    if strides != grown_strides(shape) or other_strides != grown_strides(other):
        return None
    return shape[2], (len(layers), shape[:2], shape[3], other[3], dtype, other_dtype)


def _layout(tensor: Tensor) -> tuple[torch.Size, tuple[int, ...], torch.dtype]:
    return tensor.shape, tensor.stride(), tensor.dtype
