"""Attention with its four linear layers, and rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fusewheel.ops.attention.attention import attention
from fusewheel.ops.rotary.rope import rope


class RotaryEmbedding(torch.nn.Module):
    """Rotary position embedding of queries and keys by `fusewheel.rope`, which has the formula.

    The angle of pair `i` at position `p` is `p * base ** (-2 * i / dim)`. Angles are computed in
    float32, also if the model is cast to another dtype. The state dictionary is empty, as in
    transformers.

    Source: Su et al., "RoFormer" (2021). The arguments are those of transformers 4.

    Args:
        dim: how many elements of a head are rotated, the first ones; even.
        max_position_embeddings: not used, any position has its angles; default 2048.
        base: of the angles; default 10000.
        device: of the angles; default None, which means torch's default.
        interleaved: whether a pair is two neighbours, and not an element of each half of the head;
            default False. Only by its name.

    Raises:
        ValueError: `dim` is odd.
    """

    inv_freq: Tensor

    def __init__(
        self,
        dim: int,
        max_position_embeddings: int = 2048,
        base: float = 10000.0,
        device: torch.device | str | None = None,
        *,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"RotaryEmbedding: dim must be even, got {dim}")
        self.dim = dim
        self.max_position_embeddings = max_position_embeddings
        self.base = base
        self.interleaved = interleaved
        pairs = torch.arange(0, dim, 2, dtype=torch.float32, device=device)
        self.register_buffer("inv_freq", base ** (-pairs / dim), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        before = self.inv_freq
        super()._apply(fn, recurse)
        if self.inv_freq.dtype != before.dtype:
            # Half precision would move far positions.
            self.inv_freq = before.to(self.inv_freq.device)
        return self

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[..., dim]` at these positions, in a dtype."""
        angles = positions.to(torch.float32).unsqueeze(-1) * self.inv_freq
        if self.interleaved:
            angles = angles.repeat_interleave(2, -1)
        else:
            angles = torch.cat((angles, angles), -1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys.

        Args:
            q: `[batch, heads, length, D]`, `D` at least `dim`.
            k: `[batch, key heads, length, D]`.
            position_ids: `[length]` or `[batch, length]`; default None, which means 0, 1, 2, ...
        """
        if position_ids is None:
            position_ids = torch.arange(q.shape[2], device=q.device)
        cos, sin = self.tables(position_ids, q.dtype)
        return rope(q, k, cos, sin, self.interleaved)

    def extra_repr(self) -> str:
        """The text that `print` shows for the layer."""
        return f"{self.dim}, base={self.base}, interleaved={self.interleaved}"


class Attention(torch.nn.Module):
    """Self-attention of a decoder: linear layers for queries, keys and values, rotary embeddings,
    `fusewheel.attention`, a linear layer.

    Its state dictionary is that of `LlamaAttention` in transformers: `q_proj`, `k_proj`, `v_proj`,
    `o_proj`. It keeps no cache.

    Source: Vaswani et al., "Attention Is All You Need" (2017); `LlamaAttention` of transformers.

    Args:
        hidden_size: the features of input and output.
        num_attention_heads: heads of queries.
        num_key_value_heads: heads of keys and values, which divide those of queries; default None,
            which means as many.
        head_dim: D; default None, which means `hidden_size // num_attention_heads`.
        attention_bias: whether the linear layers have a bias; default False.
        attention_dropout: the probability that a key is dropped in training; default 0.
        is_causal: whether a token sees no later one; default True.
        sliding_window: how many keys a token sees, its own included, if it is causal; default None,
            which means all.
        softcap: the largest magnitude of a score; default 0, which means no cap.
        rotary: rotates queries and keys; default None, which means `RotaryEmbedding(head_dim)`.
            False: nothing is rotated.
        device: of all parameters; default None, which means torch's default.
        dtype: of all parameters; default None, which means torch's default.

    Raises:
        ValueError: the heads of keys do not divide those of queries.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        *,
        attention_bias: bool = False,
        attention_dropout: float = 0.0,
        is_causal: bool = True,
        sliding_window: int | None = None,
        softcap: float = 0.0,
        rotary: RotaryEmbedding | bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        of_keys = num_attention_heads if num_key_value_heads is None else num_key_value_heads
        if num_attention_heads % of_keys:
            raise ValueError(
                "Attention: num_attention_heads must be a multiple of num_key_value_heads, "
                f"{of_keys}, got {num_attention_heads}"
            )
        self.head_dim = hidden_size // num_attention_heads if head_dim is None else head_dim
        self.attention_dropout = attention_dropout
        self.is_causal = is_causal
        self.sliding_window = sliding_window
        self.softcap = softcap
        self.rotary: RotaryEmbedding | None = None
        if isinstance(rotary, RotaryEmbedding):
            self.rotary = rotary
        elif rotary is not False:
            self.rotary = RotaryEmbedding(self.head_dim, device=device)
        options: dict[str, Any] = {"bias": attention_bias, "device": device, "dtype": dtype}
        inner = num_attention_heads * self.head_dim
        self.q_proj = torch.nn.Linear(hidden_size, inner, **options)
        self.k_proj = torch.nn.Linear(hidden_size, of_keys * self.head_dim, **options)
        self.v_proj = torch.nn.Linear(hidden_size, of_keys * self.head_dim, **options)
        self.o_proj = torch.nn.Linear(inner, hidden_size, **options)

    def forward(
        self,
        hidden_states: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """`[batch, length, hidden_size]` to the same shape.

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            position_ids: `[length]` or `[batch, length]`; default None, which means 0, 1, 2, ...
            attention_mask: broadcastable to `[batch, heads, length, length]`: bool, true for what
                is seen, or float, added to the scores. It counts beside causality and window.
                Default None.
        """
        batch, length, _ = hidden_states.shape
        q, k, v = (
            layer(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.rotary is not None:
            q, k = self.rotary(q, k, position_ids)
        window = None
        if self.is_causal and self.sliding_window is not None:
            window = (self.sliding_window - 1, None)
        out = attention(
            q,
            k,
            v,
            causal=self.is_causal,
            window=window,
            softcap=self.softcap,
            bias=attention_mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        assert isinstance(out, Tensor)
        result: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return result
