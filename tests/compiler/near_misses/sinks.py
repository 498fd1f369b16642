"""Attention with sinks."""

from __future__ import annotations

from typing import Any

import torch
from compiler.near_misses.attentions import BIAS, K, Q, V
from compiler.near_misses.cases import case, make


def with_sinks(
    q: Any,
    k: Any,
    v: Any,
    s: Any,
    drop: Any = (..., slice(None, -1)),
    dim: int = -1,
    less: bool = False,
) -> Any:
    logits = torch.cat([q @ k.mT * 0.3, s], dim)
    logits = logits - logits.amax(-1, keepdim=True) if less else logits
    return logits.softmax(-1)[drop] @ v


SINKS = make(4)
spread = lambda s: s.reshape(1, 4, 1, 1).expand(2, 4, 6, 1)  # noqa: E731
case("sinks", lambda q, k, v, s: with_sinks(q, k, v, spread(s)), Q, K, V, SINKS)
case("sinks_less", lambda q, k, v, s: with_sinks(q, k, v, spread(s), less=True), Q, K, V, SINKS)
case(
    "sinks_dropped_otherwise",
    lambda q, k, v, s: with_sinks(q, k, v, spread(s), drop=(..., slice(0, 8))),
    Q,
    K,
    V,
    SINKS,
)
case(
    "sinks_first_dropped",
    lambda q, k, v, s: with_sinks(q, k, v, spread(s), drop=(..., slice(1, None))),
    Q,
    K,
    V,
    SINKS,
)
case(
    "sinks_kept",
    lambda q, k, v, s, w: with_sinks(q, k, w, spread(s), drop=...),
    Q,
    K,
    V,
    SINKS,
    make(2, 4, 9, 8),
)
case("sinks_of_queries", lambda q, k, v, s: with_sinks(q, k, v, s), Q, K, V, make(2, 4, 6, 1))
case(
    "sinks_two",
    lambda q, k, v, s: with_sinks(q, k, v, s, drop=(..., slice(None, -2))),
    Q,
    K,
    V,
    make(2, 4, 6, 2),
)
case("sinks_one", lambda q, k, v, s: with_sinks(q, k, v, s.expand(2, 4, 6, 1)), Q, K, V, make(1))
case(
    "sinks_flat",
    lambda q, k, v, s: with_sinks(q, k, v, s.expand(2, 4, 6, 1)),
    Q,
    K,
    V,
    make(1, 4, 1, 1),
)
case(
    "sinks_and_mask",
    lambda q, k, v, s, b: torch.cat([q @ k.mT + b, spread(s)], -1).softmax(-1)[..., :-1] @ v,
    Q,
    K,
    V,
    SINKS,
    BIAS,
)
