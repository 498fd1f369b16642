"""The attention function that a model of transformers calls in each layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fusewheel.ops.attention.attention import attention
from fusewheel.transformers._int8_cache import int8_attention, is_int8
from fusewheel.transformers._packed import packed_attention, restarts

NOT_GIVEN: Any = object()


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = NOT_GIVEN,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    cache: Any = None,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Tensor, None]:
    """`fusewheel.attention` with the arguments of an attention function of transformers.

    Args:
        module: the attention layer.
        query: `[B, Hq, Lq, D]`.
        key: `[B, Hkv, Lk, D]`, not repeated for the query heads that share it.
        value: `[B, Hkv, Lk, Dv]`.
        attention_mask: what `mask` returns, or a mask of the user's own: bool or float,
            broadcastable to `[B, Hq, Lq, Lk]`, instead of causality and window.
        dropout: the probability that a key is dropped; default 0.
        scaling: the factor of the scores; default `D ** -0.5`.
        sliding_window: how many keys a query of a causal layer sees, its own position included;
            None means all.
        softcap: the largest magnitude of a score; default None, which means no cap.
        is_causal: whether a query sees no key after its position; default that of `module`.
        s_aux: `[Hq]`, the sinks; default None.
        position_bias: float, broadcastable to `[B, Hq, Lq, Lk]`, added to the scores.
        position_ids: the positions of the tokens. If there is one row without a mask, and positions
            restart in it, it holds packed sequences.
        cu_seq_lens_q: `[sequences + 1]`: where the queries of packed sequences begin, and their
            total length.
        cu_seq_lens_k: the same for the keys.
        cache: the pages of continuous batching, which is not supported.
        output_attentions: whether attention weights are asked for, which is not supported.
        others: ignored.

    Returns:
        `[B, Lq, Hq, Dv]`, contiguous, and None in place of the attention weights.

    Raises:
        ValueError: something is asked for that is not supported.
    """
    if output_attentions:
        _refuse("does not return attention weights (output_attentions=True)")
    if cache is not None:
        _refuse("does not support continuous batching (generate_batch)")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options: dict[str, Any] = {
        "scale": scaling,
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.to(query.dtype),
        "dropout_p": dropout,
    }
    if is_int8(key):
        if attention_mask is not None or position_bias is not None or dropout or not causal:
            _refuse("takes no padding, bias or dropout, and is causal, with a cache in int8")
        del options["dropout_p"]
        return int8_attention(query, key, value, **options), None
    if cu_seq_lens_q is None and attention_mask is None and query.shape[2] == key.shape[2]:
        cu_seq_lens_q = cu_seq_lens_k = restarts(position_ids, query)
    packed = cu_seq_lens_q is not None and cu_seq_lens_k is not None
    # A mask with four dimensions is the whole pattern, causality and window included.
    if packed or attention_mask is None or attention_mask.dim() == 2:
        options["causal"] = causal
        if causal:
            options["window"] = _window(module, sliding_window, key.shape[2])
    if packed:
        if position_bias is not None:
            _refuse("does not support a position bias with packed sequences")
        assert cu_seq_lens_q is not None and cu_seq_lens_k is not None
        out = packed_attention(query, key, value, cu_seq_lens_q, cu_seq_lens_k, **options)
    else:
        bias = _bias(attention_mask, position_bias, query)
        found = attention(query, key, value, bias=bias, **options)
        assert isinstance(found, Tensor)
        out = found.transpose(1, 2)
    return out.contiguous(), None


def _refuse(message: str) -> None:
    raise ValueError(f'attn_implementation="fusewheel" {message}; use "sdpa" or "eager" instead')


def _window(module: nn.Module, sliding_window: int | None, keys: int) -> tuple[int, None] | None:
    """The window of a causal layer, as `fusewheel.attention` takes it."""
    if sliding_window is NOT_GIVEN:
        # The mask function relies on it that a layer with a window says so.
        of_model = getattr(getattr(module, "config", None), "sliding_window", None)
        if of_model is not None and keys > of_model:
            _refuse(
                f"does not know the window of {type(module).__name__}, which does not pass it on"
            )
        return None
    return None if sliding_window is None else (sliding_window - 1, None)


def _bias(mask: Tensor | None, position_bias: Tensor | None, query: Tensor) -> Tensor | None:
    """The mask and the position bias as the bias of `fusewheel.attention`."""
    if mask is not None and mask.dim() == 2:
        mask = mask[:, None, None, :].bool()
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(query.dtype)
    if position_bias is None:
        return mask
    bias = position_bias.to(query.dtype)
    if mask is None:
        return bias
    return torch.where(mask, bias, -torch.inf) if mask.dtype == torch.bool else bias + mask
