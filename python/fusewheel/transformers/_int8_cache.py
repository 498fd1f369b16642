"""A cache of keys and values in int8, for models of transformers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from fusewheel.ops.attention.attention_decode import attention_decode

# The attribute of keys and values that has their scales: a cache hands out nothing but tensors.
_SCALES = "_fusewheel_scales"
# Free rows of a new allocation, beside a half of those that are taken.
_LEAST = 64


def int8_cache(config: Any) -> Any:
    """An empty cache that stores each key and each value as int8, with one scale for each.

    An element takes 8 bits, and each key and value of a head 32 more. With heads of 64 elements
    that is 0.27 of the memory of float32, and 0.53 of bfloat16. `fusewheel.attention_decode` reads
    the cache as it is. The first call of a model uses keys and values before they are rounded;
    later calls use the rounded ones.

    The model must have `attn_implementation="fusewheel"` and run uncompiled, without gradients and
    without padding. Beam search and `crop` work.

    Formula: `scale = max |x| / 127`, `code = round(x / scale)`.

    Source: the per-token scales of Xiao et al., "SmoothQuant" (2023).

    Args:
        config: of the model.

    Returns:
        a `Cache` of transformers, for `generate(cache=...)`.

    Raises:
        ImportError: transformers is not installed.
        ValueError: a layer of the model does not attend to all keys (a sliding window).
    """
    from transformers import Cache

    text = config.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None) or ["full_attention"]
    window = None if getattr(text, "layer_types", None) else getattr(text, "sliding_window", None)
    if set(kinds) != {"full_attention"} or window is not None:
        raise ValueError(
            "int8_cache: all layers of the model must attend to all keys, got "
            f"{sorted(set(kinds)) if window is None else f'a sliding window of {window}'}"
        )
    return Cache(layer_class_to_replicate=_layer_class())


def is_int8(key: Tensor) -> bool:
    """Whether keys come from such a cache, rounded."""
    return hasattr(key, _SCALES)


def int8_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Attention of the newest queries `[B, Hq, Lq, D]` to a cache; `[B, Lq, Hq, Dv]`.

    Args:
        query: the queries.
        key: what the cache has returned.
        value: likewise.
        options: `scale`, `softcap` and `sinks` of `fusewheel.attention_decode`.
    """
    lengths = torch.full((len(query),), key.shape[2], dtype=torch.int32, device=query.device)
    out = attention_decode(
        *(query, key, value, lengths),
        k_scales=getattr(key, _SCALES),
        v_scales=getattr(value, _SCALES),
        **options,
    )
    assert isinstance(out, Tensor)
    return out.transpose(1, 2).contiguous()


class _Rows:
    """Rows `[B, H, n, D]` as int8, in an allocation with room for more."""

    def __init__(self, like: Tensor) -> None:
        self.codes = like.new_empty((*like.shape[:2], 0, like.shape[3]), dtype=torch.int8)
        self.scales = like.new_empty((*like.shape[:2], 0), dtype=torch.float32)

    def write(self, rows: Tensor, start: int) -> None:
        end = start + rows.shape[2]
        if end > self.codes.shape[2]:
            more = end + max(_LEAST, end // 2) - start
            self.codes = _longer(self.codes, start, more)
            self.scales = _longer(self.scales, start, more)
        scales = rows.float().abs().amax(-1) / 127
        codes = rows.float() / scales.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(-1)
        self.codes[:, :, start:end] = codes.round().to(torch.int8)
        self.scales[:, :, start:end] = scales

    def first(self, count: int) -> Tensor:
        shown = self.codes[:, :, :count]
        setattr(shown, _SCALES, self.scales[:, :, :count])
        return shown

    def choose(self, index: Tensor) -> None:
        self.codes, self.scales = (t.index_select(0, index) for t in (self.codes, self.scales))


def _longer(tensor: Tensor, taken: int, more: int) -> Tensor:
    shape = [*tensor.shape[:2], taken + more, *tensor.shape[3:]]
    found = tensor.new_zeros(shape)
    found[:, :, :taken] = tensor[:, :, :taken]
    return found


@functools.cache
def _layer_class() -> Any:
    from transformers.cache_utils import DynamicLayer

    class Int8Layer(DynamicLayer):
        """The keys and values of one layer."""

        def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.rows = _Rows(key_states), _Rows(value_states)
            self.length = 0
            self.is_initialized = True

        def update(
            self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            given, start = (key_states, value_states), self.length
            for rows, new in zip(self.rows, given, strict=True):
                rows.write(new.detach(), start)
            self.length += key_states.shape[2]
            if start == 0:
                return given
            key, value = (rows.first(self.length) for rows in self.rows)
            return key, value

        def get_seq_length(self) -> int:
            return self.length if self.is_initialized else 0

        def crop(self, tokens_to_remove: int) -> None:
            if self.is_initialized:
                self.length = max(0, self.length - abs(tokens_to_remove))

        def reorder_cache(self, beam_idx: Tensor) -> None:
            for rows in self.rows if self.is_initialized else ():
                rows.choose(beam_idx.to(rows.codes.device))

        def batch_repeat_interleave(self, repeats: int) -> None:
            for rows in self.rows if self.is_initialized else ():
                index = torch.arange(len(rows.codes), device=rows.codes.device)
                rows.choose(index.repeat_interleave(repeats))

        def batch_select_indices(self, indices: Tensor) -> None:
            self.reorder_cache(indices)

        def reset(self) -> None:
            self.is_initialized = False

    return Int8Layer
