"""What a model of transformers hands to each of its attention layers as the mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def mask(
    *,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    **arguments: Any,
) -> Tensor | None:
    """The mask of all attention layers of one kind, in the shortest form that says everything.

    transformers calls this once in a forward pass of a model, with the arguments of its own
    `sdpa_mask`.

    Args:
        attention_mask: bool `[B, positions]`, False for padding, or None if there is no padding.
        local_size: the length of a sliding window, or of the chunks of Llama 4.
        allow_is_causal_skip: whether the pattern is causal, with nothing beside it but
            `local_size`.
        allow_is_bidirectional_skip: whether all queries see all keys but padding.
        config: the configuration of the model.
        arguments: what else `sdpa_mask` takes: sizes, offsets, and the pattern as a function.

    Returns:
        One of three, which `attention_forward` tells apart:

        - None: no padding. The arguments of the attention layer say whether it is causal, and its
          window.
        - bool `[B, keys]`: the same, and the keys that are False are padding.
        - bool `[B, 1, queries or 1, keys]`: this is the whole pattern.
    """
    if allow_is_causal_skip and _is_aligned(arguments) and _is_known(local_size, config, arguments):
        padding, whole = _padding(attention_mask, arguments)
        if whole:
            return padding
    if allow_is_bidirectional_skip and local_size is None:
        padding, whole = _padding(attention_mask, arguments)
        if whole:
            return None if padding is None else padding[:, None, None, :]
    from transformers.masking_utils import sdpa_mask

    pattern: Tensor | None = sdpa_mask(
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        config=config,
        **arguments,
    )
    return pattern


def _is_aligned(arguments: dict[str, Any]) -> bool:
    """Whether the last query is at the position of the last key, as `causal=True` has it.

    It is not with a static cache, whose last keys are not written yet. That says its offset too,
    which is a tensor there.
    """
    names = ("q_length", "q_offset", "kv_length", "kv_offset")
    sizes: list[Any] = [arguments.get(name) for name in names]
    if not all(isinstance(size, int) for size in sizes):
        return False
    queries, first_query, keys, first_key = sizes
    aligned: bool = first_query + queries == first_key + keys
    return aligned


def _is_known(local_size: int | None, config: Any, arguments: dict[str, Any]) -> bool:
    """Whether the pattern is causal, or causal in a window that the attention layers know too."""
    if local_size is None or arguments["kv_offset"] + arguments["kv_length"] <= local_size:
        return True
    chunk = getattr(config, "attention_chunk_size", None)
    return chunk is None and getattr(config, "sliding_window", None) == local_size


def _padding(
    attention_mask: Tensor | None, arguments: dict[str, Any]
) -> tuple[Tensor | None, bool]:
    """Which keys are no padding, None if none is; and whether the mask says so of all keys."""
    if attention_mask is None:
        return None, True
    first = arguments["kv_offset"]
    end = first + arguments["kv_length"]
    if attention_mask.shape[-1] != end:
        return None, False
    keys = attention_mask[:, first:]
    # Reading a tensor's values would end a compiled program there.
    if not torch.compiler.is_compiling() and keys.all():
        return None, True
    return keys, True
