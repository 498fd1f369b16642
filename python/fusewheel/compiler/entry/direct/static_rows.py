"""Static caches, as the growing caches that programs take.

A `StaticCache` of transformers has memory for its greatest length. Attention reads all of that
memory, and a mask hides what is not written yet. A program reads only the rows that are there. So
it is given a `DynamicCache` with the same rows, and the rows that it adds are copied to the static
cache. That one always holds what it would hold if there were no program.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Grown:
    """The rows of a static cache.

    Attributes:
        cache: a growing cache that has them.
        written: keys and values of the static cache, and their versions when the last rows were
            copied there. A later version means that somebody else has written.
    """

    cache: Any
    written: list[tuple[Tensor, int]]

    def holds_for(self, tensors: list[Tensor]) -> bool:
        return len(tensors) == len(self.written) and all(
            tensor is known and tensor._version == version
            for tensor, (known, version) in zip(tensors, self.written, strict=True)
        )


_grown: weakref.WeakKeyDictionary[Any, _Grown] = weakref.WeakKeyDictionary()


def growing(static: Any, count: int, config: Any, caches: Any) -> Any:
    """A `DynamicCache` with the rows of a static cache.

    Args:
        static: the static cache.
        count: how many tokens each text will have more.
        config: of the model.
        caches: the module of transformers that defines caches.

    Returns:
        None if layers are of another kind, differ in length, or have no room for the new tokens.
    """
    past = _length(static.layers)
    tensors = list(_tensors(static))
    if past is None or any(type(x) is not Tensor or x.is_inference() for x in tensors):
        return None
    if torch.is_inference_mode_enabled():  # its tensors have no versions
        return None
    known = _grown.get(static)
    if known is not None and known.holds_for(tensors) and known.cache.get_seq_length() == past:
        made = known.cache
    elif hasattr(config, "get_text_config"):
        made = caches.DynamicCache(config=config.get_text_config(decoder=True))
        if len(made.layers) != len(static.layers):
            return None
    else:
        return None
    for layer, own in zip(made.layers, static.layers, strict=True):
        if not _has_room(own, layer, past + count, count, caches):
            return None
        if past and not layer.is_initialized:
            layer.lazy_initialization(own.keys, own.values)
            layer.keys, layer.values = own.keys[:, :, :past], own.values[:, :, :past]
            if layer.is_sliding:
                layer.cumulative_length = past
    return made


def _has_room(static: Any, layer: Any, length: int, count: int, caches: Any) -> bool:
    """Whether a static layer keeps that many tokens, of which a program adds the last ones.

    Args:
        static: the layer.
        layer: the growing layer that takes its place.
        length: all tokens of each text.
        count: the new ones of these.
        caches: the module of transformers that defines caches.
    """
    kinds = type(static), type(layer)
    if kinds == (caches.StaticLayer, caches.DynamicLayer):
        fits = True
    elif kinds == (caches.StaticSlidingWindowLayer, caches.DynamicSlidingWindowLayer):
        # It keeps one token less than its window.
        fits = count < layer.sliding_window
    else:
        return False
    return fits and length <= static.max_cache_len


def _length(layers: list[Any]) -> int | None:
    """How many tokens static layers have read; None if they differ or do not say so."""
    if not all(isinstance(getattr(x, "cumulative_length", None), Tensor) for x in layers):
        return None
    read = {int(layer.get_seq_length()) for layer in layers}
    return read.pop() if len(read) == 1 else None


def _tensors(cache: Any) -> Iterator[Tensor]:
    for layer in cache.layers:
        if layer.is_initialized:
            yield layer.keys
            yield layer.values


def forms(cache: Any) -> list[Any]:
    """What all keys and values of a cache are like, but for the number of rows."""
    return [(x.shape[:2], x.shape[3:], x.dtype, x.device.type) for x in _tensors(cache)]


def padding(mask: Any, texts: int, past: int, count: int) -> Tensor | None:
    """Which tokens are no padding, by the masks that a call with a static cache is given.

    Args:
        mask: bool, or a floating dtype's 0 and smallest number, ``[texts, 1, new tokens, room]``;
            or a dictionary with one such mask, or None, for each kind of layers.
        texts: how many texts there are.
        past: the tokens that the cache has read.
        count: the new tokens of each text.

    Returns:
        int64, ``[texts, past + count]``; None if the masks differ, or hide anything else than
        padding and the tokens that come later.
    """
    masks = list(mask.values()) if isinstance(mask, dict) else [mask]
    found = [_padding(mask, texts, past, count) for mask in masks]
    first = found[0] if found else None
    alike = first is not None and all(x is not None and torch.equal(x, first) for x in found)
    return first if alike else None


def _padding(mask: Any, texts: int, past: int, count: int) -> Tensor | None:
    length = past + count
    if mask is None and not past and count > 1:  # attention is causal then
        return torch.ones(texts, length, dtype=torch.int64)
    if type(mask) is not Tensor or mask.dim() != 4 or mask.shape[:3] != (texts, 1, count):
        return None
    if mask.is_floating_point():
        hidden = mask == torch.finfo(mask.dtype).min
        # A token to which everything is hidden sees everything, also rows that are not there yet.
        if hidden.all(-1).any() or not (hidden | (mask == 0)).all():
            return None
        mask = ~hidden
    if mask.dtype is not torch.bool or mask.shape[3] < length or mask[..., length:].any():
        return None
    shown = mask[:, 0, :, :length]
    tokens = shown[:, -1]
    earlier = torch.ones(count, length, dtype=torch.bool).tril(past)
    if count > 1 and not torch.equal(shown, tokens[:, None] & earlier):
        return None
    return tokens.long()


def write_back(static: Any, cache: Any, past: int, count: int) -> None:
    """Copy the rows that a program has added to the static cache.

    Args:
        static: the static cache.
        cache: what `growing` made of it; the program has added rows.
        past: how many tokens of each text the static cache has.
        count: how many are added.
    """
    for layer, grown in zip(static.layers, cache.layers, strict=True):
        if not layer.is_initialized:
            layer.lazy_initialization(grown.keys, grown.values)
        layer.keys.narrow(2, past, count).copy_(grown.keys[:, :, -count:])
        layer.values.narrow(2, past, count).copy_(grown.values[:, :, -count:])
        layer.cumulative_length.add_(count)
        if layer.is_sliding:
            layer.cumulative_length_int += count
    _grown[static] = _Grown(cache, [(tensor, tensor._version) for tensor in _tensors(static)])
