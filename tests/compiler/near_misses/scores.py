"""Attention that is written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from compiler.near_misses.attentions import ALL, BIAS, K, Q, V, attend
from compiler.near_misses.cases import case, make

case("written", lambda q, k, v: attend(q, k, v), Q, K, V)
case("written_flat", lambda q, k, v: attend(q, k, v), Q[0], K[0], V[0])
case("written_matrix", lambda q, k, v: attend(q, k, v), Q[0, 0], K[0, 0], V[0, 0])
case("written_vector", lambda q, k, v: attend(q, k, v), Q[0, 0, 0], K[0, 0], V[0, 0])
case("written_five", lambda q, k, v: attend(q, k, v), Q[None], K[None], V[None])
case("written_other_dim", lambda q, k, v: (q @ k.transpose(-2, -1)).softmax(-2) @ v, Q, K, V)
case("written_keys_first", lambda q, k, v: (q @ k).softmax(-1) @ v, Q, K, V)
case("written_no_product", lambda s, v: s.softmax(-1) @ v, make(2, 4, 6, 8), V)
case("written_used", lambda q, k, v: (lambda w: (w @ v, w))((q @ k.mT).softmax(-1)), Q, K, V)
case("written_scores_used", lambda q, k, v: (lambda s: (s.softmax(-1) @ v, s))(q @ k.mT), Q, K, V)
case(
    "written_weights_right",
    lambda q, k, v: v.transpose(-2, -1) @ (q @ k.mT).softmax(-1).transpose(-2, -1),
    Q,
    K,
    V,
)
case(
    "written_weights_cut",
    lambda q, k, v: (q @ k.mT).softmax(-1)[..., :-1] @ v[:, :, :-1],
    *(Q, K, V),
)
case(
    "written_values_double",
    lambda q, k, v: (q @ k.mT).softmax(-1).double() @ v,
    *(Q, K, V.double()),
)
case("written_weights_second", lambda q, k, v: v[:, :, :6, :6] @ (q @ k.mT).softmax(-1), Q, K, V)
case("written_plus_weights", lambda q, k, v: (q @ k.mT).softmax(-1) + v[:, :, :6], Q, K, V)
case("written_added", lambda q, k, v, b: attend(q, k, v, lambda s: s + b), Q, K, V, BIAS)
case("written_added_number", lambda q, k, v: attend(q, k, v, lambda s: s + 1), Q, K, V)
case(
    "written_added_half",
    lambda q, k, v, b: attend(q, k, v, lambda s: s + b),
    Q,
    K,
    V,
    BIAS.bfloat16(),
)
case("written_added_twice", lambda q, k, v, b: attend(q, k, v, lambda s: s + b + b), Q, K, V, BIAS)
case(
    "written_added_trained",
    lambda q, k, v, b: attend(q, k, v, lambda s: s + b),
    Q,
    K,
    V,
    BIAS.clone().requires_grad_(),
)
case(
    "written_added_wide",
    lambda q, k, v, b: attend(q, k, v, lambda s: s + b),
    Q[:1],
    K[:1],
    V[:1],
    make(2, 1, 6, 8),
)
case(
    "written_filled",
    lambda q, k, v: attend(
        q, k, v, lambda s: s.masked_fill(torch.ones(6, 8).tril() == 0, -torch.inf)
    ),
    Q,
    K,
    V,
)
case(
    "written_filled_unknown",
    lambda q, k, v, m: attend(q, k, v, lambda s: s.masked_fill(m, -torch.inf)),
    Q,
    K,
    V,
    ALL,
)
case(
    "written_filled_tensor",
    lambda q, k, v, m, n: attend(q, k, v, lambda s: s.masked_fill(m, n)),
    *(Q, K, V, ~ALL, torch.tensor(-torch.inf)),
)
case(
    "written_least_trained",
    lambda q, k, v, m: attend(q, k, v, lambda s: s.masked_fill(m, -3.4028234663852886e38)),
    Q.clone().requires_grad_(),
    K,
    V,
    ~ALL,
)
case(
    "written_least_half",
    lambda q, k, v, m: attend(q, k, v, lambda s: s.masked_fill(m, -65504.0)),
    Q.half(),
    K.half(),
    V.half(),
    ~ALL,
)
case(
    "written_filled_trained",
    lambda q, k, v, m: attend(q, k, v, lambda s: s.masked_fill(m, -torch.inf)),
    Q.clone().requires_grad_(),
    K,
    V,
    ~ALL,
)
case(
    "written_filled_all",
    lambda q, k, v, m: attend(q, k, v, lambda s: s.masked_fill(m, -torch.inf)),
    Q,
    K,
    V,
    torch.zeros(6, 8, dtype=torch.bool),
)
case(
    "written_filled_least",
    lambda q, k, v, m: attend(q, k, v, lambda s: s.masked_fill(m, -3.4028234663852886e38)),
    Q,
    K,
    V,
    ALL,
)
case(
    "written_filled_less",
    lambda q, k, v, m: attend(q, k, v, lambda s: s.masked_fill(m, -1e9)),
    Q,
    K,
    V,
    ALL,
)
case(
    "written_filled_twice",
    lambda q, k, v, m: attend(
        q, k, v, lambda s: s.masked_fill(m, -torch.inf).masked_fill(m, -torch.inf)
    ),
    Q,
    K,
    V,
    ALL,
)
case(
    "written_filled_and_added",
    lambda q, k, v, m, b: attend(q, k, v, lambda s: s.masked_fill(m, -torch.inf) + b),
    Q,
    K,
    V,
    ALL,
    BIAS,
)
case(
    "written_scaled_after", lambda q, k, v, b: attend(q, k, v, lambda s: (s + b) * 2), Q, K, V, BIAS
)
case("written_divided", lambda q, k, v: attend(q, k, v, lambda s: s / 2.5), Q, K, V)
case("written_divided_by_scores", lambda q, k, v: attend(q, k, v, lambda s: 2.5 / s), Q, K, V)
case("written_negative", lambda q, k, v: attend(q, k, v, lambda s: s * -1.0), Q, K, V)
case("written_infinite", lambda q, k, v: attend(q, k, v, lambda s: s * float("inf")), Q, K, V)
case(
    "written_scaled_by_tensor",
    lambda q, k, v, b: attend(q, k, v, lambda s: s * b),
    Q,
    K,
    V,
    make(1),
)
case("written_exp", lambda q, k, v: attend(q, k, v, lambda s: s.exp()), Q, K, V)
case("written_in_place", lambda q, k, v: attend(q, k, v, lambda s: s.mul_(2)), Q, K, V)
case("written_capped", lambda q, k, v: attend(q, k, v, lambda s: (s / 5).tanh() * 5), Q, K, V)
case(
    "written_masked_tanh",
    lambda q, k, v, b: attend(q, k, v, lambda s: (s + b).tanh()),
    *(Q, K, V, BIAS),
)
case(
    "written_capped_twice",
    lambda q, k, v: attend(q, k, v, lambda s: (((s / 5).tanh() * 5) / 5).tanh() * 5),
    Q,
    K,
    V,
)
case(
    "written_capped_masked",
    lambda q, k, v, b: attend(q, k, v, lambda s: ((s + b) / 5).tanh() * 5),
    Q,
    K,
    V,
    BIAS,
)
case("written_rounded", lambda q, k, v: attend(q, k, v, lambda s: s.bfloat16().float()), Q, K, V)
case(
    "written_wide",
    lambda q, k, v: (q @ k.mT).float().softmax(-1).bfloat16() @ v,
    Q.bfloat16(),
    K.bfloat16(),
    V.bfloat16(),
)
case("written_wider", lambda q, k, v: (q @ k.mT).double().softmax(-1).float() @ v, Q, K, V)
case("written_double", lambda q, k, v: attend(q, k, v), Q.double(), K.double(), V.double())
case("written_other_features", lambda q, k, v: attend(q, k, v), Q, K, V[..., :5])
case("written_broadcast", lambda q, k, v: attend(q, k, v), Q, K[:1], V)
case("written_dropout", lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 1.0) @ v, Q, K, V)
case(
    "written_no_dropout", lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.5, False) @ v, Q, K, V
)
case(
    "written_einsum",
    lambda q, k, v: torch.einsum(
        "bhqk,bhkd->bqhd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v
    ),
    Q,
    K,
    V,
)
case(
    "written_einsum_flat",
    lambda q, k, v: torch.einsum("bqk,bkd->bqd", torch.einsum("bqd,bkd->bqk", q, k).softmax(-1), v),
    *(Q[0], K[0], V[0]),
)
case(
    "written_einsum_matrix",
    lambda q, k, v: torch.einsum("qk,kd->qd", torch.einsum("qd,kd->qk", q, k).softmax(-1), v),
    *(Q[0, 0], K[0, 0], V[0, 0]),
)
case(
    "written_einsum_turned",
    lambda q, k, v: torch.einsum(
        "bhkd,bhqk->bhqd", v, torch.einsum("bhkd,bhqd->bhqk", k, q).softmax(-1)
    ),
    Q,
    K,
    V,
)
case(
    "written_einsum_keys",
    lambda q, k, v: torch.einsum(
        "bhqk,bhqd->bhkd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v[:, :, :6]
    ),
    Q,
    K,
    V,
)
case(
    "written_einsum_heads",
    lambda q, k, v: torch.einsum(
        "bhqk,bkd->bhqd", torch.einsum("bhqd,bkd->bhqk", q, k).softmax(-1), v
    ),
    Q,
    K[:, 0],
    V[:, 0],
)
