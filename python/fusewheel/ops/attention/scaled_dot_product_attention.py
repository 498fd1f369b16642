"""Attention with the arguments of PyTorch's function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Operator
from fusewheel.dispatch.promise import fail
from fusewheel.ops._drop_in import drop_in, is_mixture
from fusewheel.ops.attention.attention import attention

_OP = "scaled_dot_product_attention"
_NAMES = {"q": "query", "k": "key", "v": "value", "bias": "attn_mask"}


def _scripted(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """TorchScript compiles PyTorch's function instead; `fusewheel.jit.optimize` replaces it."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


@drop_in("attention", _NAMES, scripted=_scripted)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`softmax(scale * query @ key.transpose(-1, -2) + attn_mask) @ value`, by the kernels of
    `fusewheel.attention`. Its docstring has the formula, and says what PyTorch operators compute.

    Scores are not materialised, in the forward and in the backward. The gradient of `attn_mask` and
    everything with dropout are computed by PyTorch operators, for some queries at a time.
    TorchScript compiles PyTorch's function. `fusewheel.attention` has more: windows, sinks, a soft
    cap, its logsumexp.

    Source: `torch.nn.functional.scaled_dot_product_attention`; Dao et al., "FlashAttention" (2022).

    Args:
        query: `[..., Hq, L, E]` or `[..., L, E]`; float32, bfloat16, float16 or float64.
        key: `[..., H, S, E]`, with the dtype and device of `query`; dimensions in front of the last
            two broadcast.
        value: `[..., H, S, Ev]`, with the dtype and device of `query`; dimensions in front of the
            last two broadcast.
        attn_mask: broadcastable to `[..., Hq, L, S]`: bool, true for the keys that are seen, or a
            float that is added to the scores; default None.
        dropout_p: the probability, from 0 to 1, that a key is dropped for a query; default 0.
        is_causal: whether query `i` sees the keys 0 to `i` only; default False. With more keys than
            queries this is not `causal` of `fusewheel.attention`, where the last query sees all.
        scale: the factor of the scores; default `E ** -0.5`.
        enable_gqa: whether Hq may be a multiple of H; then Hq / H heads of `query` in a row share a
            head of `key` and `value`. Default False.

    Returns:
        `[..., Hq, L, Ev]` with the dtype of `query`.

    Raises:
        ValueError: `dropout_p` is out of range.
        RuntimeError: a dtype, shape or device is not as above, a tensor is sparse, or `attn_mask`
            is given together with `is_causal`.
    """
    if attn_mask is not None and is_causal:
        fail(_OP, "attn_mask must be None where is_causal is true")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            fail(_OP, f"{name} must have at least two dimensions, got shape {list(tensor.shape)}")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{_OP}: dropout_p must be between 0 and 1, got {dropout_p}")
    batch, heads, shared = _leading(query, key, value, enable_gqa)
    q = _with_heads(query, batch, heads)
    k, v = (_with_heads(t, batch, shared) for t in (key, value))
    length, keys = q.shape[2], k.shape[2]
    bias = None if attn_mask is None else _bias(attn_mask, q, (*batch, *heads, length, keys))
    window = None
    if is_causal and length > keys:
        # The last query of `causal` sees the last key; here the first sees the first.
        window, is_causal = (None, length - keys), False
    elif is_causal and keys > length:
        k, v = k[:, :, :length], v[:, :, :length]
    options: dict[str, Any] = {"scale": scale, "dropout_p": dropout_p, "bias": bias}
    out = attention(q, k, v, causal=is_causal, window=window, **options)
    assert isinstance(out, Tensor)
    if len(batch) == 1 and len(heads) == 1:
        return out
    return out.reshape(*batch, *heads, *out.shape[-2:])


def _leading(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[list[int], list[int], list[int]]:
    """The dimensions of the batch, and the heads of queries and of keys, as PyTorch broadcasts."""
    before = [list(t.shape[:-2]) for t in (query, key, value)]
    if enable_gqa and min(map(len, before)) > 0:
        heads, shared = before[0][-1:], before[1][-1:]
        if before[2][-1:] != shared:
            fail(_OP, f"value must have the heads of key, {shared[0]}, got {before[2][-1]}")
        return _broadcast([b[:-1] for b in before]), heads, shared
    together = _broadcast(before)
    heads = together[-1:]
    return together[:-1], heads, heads


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    try:
        return list(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return fail(
            _OP,
            "query, key and value must have dimensions that broadcast in front of their last two, "
            f"got {', '.join(str(list(shape)) for shape in shapes)}",
        )


def _with_heads(x: Tensor, batch: list[int], heads: list[int]) -> Tensor:
    """`[B, H, L, E]`, a view where that is possible."""
    shape = [*batch, *heads]
    if list(x.shape[:-2]) != shape:
        x = x.expand(*shape, *x.shape[-2:])
    if len(batch) == 1 and len(heads) == 1:
        return x
    return x.reshape(math.prod(batch), math.prod(heads), *x.shape[-2:])


def _bias(mask: Tensor, q: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask as `fusewheel.attention` takes it."""
    if mask.dtype != torch.bool and is_mixture(q, mask):
        mask = mask.to(q.dtype)
    if mask.dim() > 2 and len(shape) > 4:
        mask = mask.expand(shape).flatten(0, -4)
    return mask


OPERATORS: tuple[Operator, ...] = ()
FUNCTIONS = (scaled_dot_product_attention,)
