"""Calls of attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from compiler.near_misses.cases import case, make

Q, K, V = make(2, 4, 6, 8), make(2, 4, 8, 8) * 2, make(2, 4, 8, 8) + 1
K2, V2 = make(2, 2, 8, 8), make(2, 2, 8, 8) - 1
sdpa = F.scaled_dot_product_attention


def repeat(x: Any, count: int = 2, dim: int = 2) -> Any:
    sizes = [2, 2, 8, 8]
    sizes.insert(dim, count)
    return x.unsqueeze(dim).expand(*sizes).reshape(2, 2 * count, 8, 8)


def attend(q: Any, k: Any, v: Any, change: Any = lambda s: s) -> Any:
    return change(q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v


ALL = torch.arange(6)[:, None] >= torch.arange(8) - 1
BIAS = make(6, 8)
case("sdpa", lambda q, k, v: sdpa(q, k, v), Q, K, V)
case("sdpa_causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), Q, K, V)
case("sdpa_mask", lambda q, k, v: sdpa(q, k, v, torch.ones(6, 8, dtype=torch.bool).tril()), Q, K, V)
case(
    "sdpa_mask_half",
    lambda q, k, v: sdpa(q, k, v, torch.ones(6, 8, dtype=torch.bool).tril()),
    Q.half(),
    K.half(),
    V.half(),
)
case(
    "sdpa_mask_later",
    lambda q, k, v: sdpa(q, k, v, torch.ones(6, 8, dtype=torch.bool).tril(1)),
    Q,
    K,
    V,
)
case(
    "sdpa_mask_window",
    lambda q, k, v: sdpa(q, k, v, torch.ones(6, 8, dtype=torch.bool).tril().triu(-2)),
    Q,
    K,
    V,
)
case("sdpa_bias", lambda q, k, v, b: sdpa(q, k, v, b), Q, K, V, BIAS)
case(
    "sdpa_padding",
    lambda q, k, v, p: sdpa(q, k, v, p),
    Q,
    K,
    V,
    torch.ones(2, 1, 1, 8, dtype=torch.bool),
)
case(
    "sdpa_mask_and_other",
    lambda q, k, v, m: sdpa(q, k, v, m & torch.ones(6, 8, dtype=torch.bool).tril()),
    Q,
    K,
    V,
    ALL,
)
case(
    "sdpa_least",
    lambda q, k, v: sdpa(q, k, v, torch.full((6, 8), -3.4028234663852886e38).triu(1)),
    Q,
    K,
    V,
)
case("sdpa_not_least", lambda q, k, v: sdpa(q, k, v, torch.full((6, 8), -1e9).triu(1)), Q, K, V)
case(
    "sdpa_least_everywhere",
    lambda q, k, v: sdpa(q, k, v, torch.full((6, 8), -3.4028234663852886e38).triu(-1)),
    *(t.clone().requires_grad_() for t in (Q, K, V)),
)
case(
    "sdpa_dropout",
    lambda q, k, v: sdpa(q, k, v, torch.ones(6, 8, dtype=torch.bool).tril(), dropout_p=1.0),
    Q,
    K,
    V,
)
case("repeated", lambda q, k, v: sdpa(q, repeat(k), repeat(v)), Q, K2, V2)
case(
    "repeated_mask", lambda q, k, v, m: sdpa(q, repeat(k), repeat(v), m, scale=0.2), Q, K2, V2, BIAS
)
case("repeated_causal", lambda q, k, v: sdpa(q, repeat(k), repeat(v), is_causal=True), Q, K2, V2)
case("repeated_keys", lambda q, k, v: sdpa(q, repeat(k), v), Q, K2, V)
case("repeated_values", lambda q, k, v: sdpa(q, k, repeat(v)), Q, K, V2)
case(
    "repeated_otherwise",
    lambda q, k, v: sdpa(q, repeat(k), v.unsqueeze(2).expand(2, 1, 4, 8, 8).reshape(2, 4, 8, 8)),
    *(Q, K2, V2[:, :1]),
)
case("repeated_in_order", lambda q, k, v: sdpa(q, repeat(k, dim=1), repeat(v, dim=1)), Q, K2, V2)
case("repeated_for_one_query", lambda q, k, v: sdpa(q, repeat(k), repeat(v)), Q[:, :1], K2, V2)
case(
    "repeated_twice",
    lambda q, k, v: sdpa(q, repeat(k), repeat(v), enable_gqa=True),
    make(2, 8, 6, 8),
    K2,
    V2,
)
case(
    "repeated_trained",
    lambda q, k, v: sdpa(q, repeat(k), repeat(v)),
    Q.clone().requires_grad_(),
    K2,
    V2,
)
case(
    "repeated_trained_keys",
    lambda q, k, v: sdpa(q, repeat(k), repeat(v)),
    Q,
    K2.clone().requires_grad_(),
    V2,
)
