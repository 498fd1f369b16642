"""Rotary embedding."""

from __future__ import annotations

from typing import Any

import torch
from compiler.near_misses.cases import case, make

T, U = make(2, 4, 6, 8), make(2, 2, 6, 8)
COS, SIN = make(6, 8), make(6, 8) + 1


def turn(x: Any, at: int = 4) -> Any:
    return torch.cat([-x[..., at:], x[..., :at]], -1)


def pairs(x: Any) -> Any:
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(2, -1, 6, 8)


def rotate(x: Any, c: Any, s: Any, half: Any = turn) -> Any:
    return x * c + half(x) * s


def both(half: Any = turn, second: Any = None) -> Any:
    return lambda x, y, c, s: (rotate(x, c, s, half), rotate(y, c, s, second or half))


wide = lambda t: t.expand(2, 6, 8).clone()  # noqa: E731
case("rope", both(), T, U, COS, SIN)
case(
    "rope_pairs",
    lambda x, y, c, s: (
        rotate(
            x, c, s, lambda z: torch.stack([-z[..., 1::2], z[..., ::2]], -1).reshape(2, 4, 6, 8)
        ),
        rotate(
            y, c, s, lambda z: torch.stack([-z[..., 1::2], z[..., ::2]], -1).reshape(2, 2, 6, 8)
        ),
    ),
    T,
    U,
    COS,
    SIN,
)
case("rope_one", lambda x, c, s: rotate(x, c, s), T, COS, SIN)
case(
    "rope_broadcast",
    lambda x, c, s: rotate(x, c, s),
    T[:1],
    *(t.repeat(2, 1, 1, 1) for t in (COS, SIN)),
)
case(
    "rope_half_mixed",
    lambda x, c, s: x * c + turn(x).float() * s,
    T.bfloat16(),
    COS.bfloat16(),
    SIN,
)
case(
    "rope_both_ways",
    both(turn, lambda z: torch.stack([-z[..., 1::2], z[..., ::2]], -1).reshape(2, 2, 6, 8)),
    T,
    U,
    COS,
    SIN,
)
case(
    "rope_batch_tables",
    lambda x, y, c, s: both()(x, y, c.unsqueeze(1), s.unsqueeze(1)),
    T,
    U,
    wide(COS),
    wide(SIN),
)
case("rope_three_dims", both(), T, U, COS[None], SIN[None])
case("rope_four_dims", both(), T, U, COS[None, None], SIN[None, None])
case("rope_table_of_heads", both(), T, T + 1, make(4, 6, 8), make(4, 6, 8))
case("rope_table_of_one", both(), T, U, make(8), make(8))
case("rope_tables_differ", both(), T, U, COS, SIN[None])
case(
    "rope_other_tables",
    lambda x, y, c, s, e: (rotate(x, c, s), rotate(y, e, s)),
    T,
    U,
    COS,
    SIN,
    COS + 1,
)
case(
    "rope_other_sines",
    lambda x, y, c, s, e: (rotate(x, c, s), rotate(y, c, e)),
    T,
    U,
    COS,
    SIN,
    COS + 1,
)
case("rope_minus", lambda x, y, c, s: (x * c - turn(x) * s, rotate(y, c, s)), T, U, COS, SIN)
case(
    "rope_of_another", lambda x, y, c, s: (x * c + turn(y) * s, rotate(y, c, s)), T, T + 1, COS, SIN
)
case("rope_cos_of_number", lambda x, y, s: (x * 2 + turn(x) * s, y), T, U, SIN)
case("rope_sin_of_number", lambda x, y, c: (x * c + turn(x) * 2, y), T, U, COS)
case("rope_uneven", both(lambda z: turn(z, 3)), T, U, COS, SIN)
case(
    "rope_of_part",
    lambda x, c, s: x[..., :8] * c + torch.cat([-x[..., 4:8], x[..., :4]], -1) * s,
    make(2, 4, 6, 12),
    COS,
    SIN,
)
case("rope_not_negated", both(lambda z: torch.cat([z[..., 4:], z[..., :4]], -1)), T, U, COS, SIN)
case("rope_negated_low", both(lambda z: torch.cat([z[..., 4:], -z[..., :4]], -1)), T, U, COS, SIN)
case("rope_not_turned", both(lambda z: torch.cat([-z[..., :4], z[..., 4:]], -1)), T, U, COS, SIN)
case(
    "rope_joined_in_rows",
    lambda x, c, s: rotate(x, c, s, lambda z: torch.cat([-z[..., 3:, :], z[..., :3, :]], -2)),
    T,
    COS,
    SIN,
)
case("rope_joined_otherwise", lambda x: torch.cat([-x[..., 4:], x[..., :4]], 0), T)
case(
    "rope_pairs_turned",
    lambda x, c, s: rotate(
        x, c, s, lambda z: torch.stack([-z[..., ::2], z[..., 1::2]], -1).reshape(2, 4, 6, 8)
    ),
    T,
    COS,
    SIN,
)
case("rope_pairs_not_flat", lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1) * 2, T)
case(
    "rope_pairs_flat_otherwise",
    lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(2, 4, 48) * 2,
    T,
)
case(
    "rope_used",
    lambda x, y, c, s: (lambda t: (x * c + t * s, rotate(y, c, s), t))(turn(x)),
    T,
    U,
    COS,
    SIN,
)
case("rope_three_dims_input", both(), T[0], U[0], COS, SIN)
case(
    "rope_other_lengths",
    lambda x, y, c, s: (rotate(x, c, s), rotate(y, c[:1], s[:1])),
    T,
    U[:, :, :1],
    COS,
    SIN,
)
case("rope_half", both(), T.bfloat16(), U.bfloat16(), COS.bfloat16(), SIN.bfloat16())
case("rope_half_tables_wide", both(), T.bfloat16(), U.bfloat16(), COS, SIN)
case("rope_mixed", both(), T, U.bfloat16(), COS.bfloat16(), SIN.bfloat16())
case(
    "rope_dtypes_differ",
    lambda x, y, c, s: (x * c + (turn(x) * s).float(), rotate(y, c, s)),
    T.bfloat16(),
    U.bfloat16(),
    COS.bfloat16(),
    SIN.bfloat16(),
)
case("rope_depends", lambda x, c, s: (lambda a: (a, rotate(a, c, s)))(rotate(x, c, s)), T, COS, SIN)
case(
    "rope_depends_at_once",
    lambda x, c, s: (lambda a: (a, rotate(a * 2, c, s)))(rotate(x, c, s)),
    T,
    COS,
    SIN,
)
case(
    "rope_after_use",
    lambda x, y, c, s: (lambda a: (a, rotate(y + a.sum(), c, s)))(rotate(x, c, s)),
    T,
    U,
    COS,
    SIN,
)
case("rope_integers", both(), T.long(), U.long(), COS.long(), SIN.long())
case("rope_plain_cat", lambda x, y: torch.cat([x, y], 1), T, U)
case("rope_three_parts", lambda x: torch.cat([-x, x, x], -1), T)
