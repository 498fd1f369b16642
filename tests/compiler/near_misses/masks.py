"""Masks of attention, for as many keys as queries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from compiler.near_misses.cases import case, make

Q, K, V = make(2, 4, 6, 8), make(2, 4, 6, 8) * 2, make(2, 4, 6, 8) + 1


def masked(build: Callable[[], Any]) -> Callable[..., Any]:
    """Attention with a mask that is computed from nothing."""
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, build())


def rows(start: int = 0, end: int = 6, **options: Any) -> Any:
    return torch.arange(start, end, **options)[:, None]


def columns(start: int = 0, end: int = 6, **options: Any) -> Any:
    return torch.arange(start, end, **options)[None, :]


def ones(*sizes: int, dtype: torch.dtype = torch.bool) -> Any:
    return torch.ones(*(sizes or (6, 6)), dtype=dtype)


def added(condition: Any, shown: Any = 0.0, hidden: Any = -math.inf) -> Any:
    return torch.where(condition, shown, hidden)


WIDE = {"dtype": torch.float32}
BOUNDS: dict[str, Callable[[], Any]] = {
    "causal": lambda: columns() <= rows(),
    "turned": lambda: rows() >= columns(),
    "less": lambda: columns() < rows(),
    "turned_greater": lambda: rows() > columns(),
    "later": lambda: columns() >= rows(),
    "turned_less": lambda: rows() < columns(),
    "less_than_next": lambda: columns() < rows() + 1,
    "more_than_last": lambda: rows() > columns() - 1,
    "one_before": lambda: columns() + 1 <= rows(),
    "plus_first": lambda: columns() <= 1 + rows(),
    "two_later": lambda: columns() <= rows(2, 8),
    "keys_two_later": lambda: columns(2, 8) <= rows(),
    "not": lambda: ~(columns() > rows()),
    "not_less": lambda: ~(columns() < rows()),
    "not_greater_equal": lambda: ~(columns() >= rows() + 2),
    "not_less_equal": lambda: ~(columns() <= rows() - 3),
    "not_not": lambda: ~~(columns() <= rows()),
    "window": lambda: (columns() <= rows()) & (columns() > rows() - 3),
    "not_outside": lambda: ~((columns() > rows()) | (columns() <= rows() - 3)),
    "either": lambda: (columns() <= rows()) | (columns() > rows() + 3),
    "not_both": lambda: ~((columns() > rows()) & (columns() < rows() + 3)),
    "three": lambda: (columns() <= rows() + 2) & (columns() <= rows()) & (columns() > rows() - 4),
    "int32": lambda: columns(dtype=torch.int32) <= rows(dtype=torch.int32),
    "int16": lambda: columns(dtype=torch.int16) <= rows(dtype=torch.int16),
    "floats": lambda: columns(**WIDE) <= rows(**WIDE),
    "halves": lambda: columns() <= rows() + 0.5,
    "steps": lambda: columns(0, 12, step=2) <= rows(0, 12, step=2),
    "minus_position": lambda: columns() <= 5 - rows(),
    "sum_of_positions": lambda: columns() + rows() <= 5,
    "columns_alone": lambda: columns() <= columns(),
    "rows_alone": lambda: rows() >= rows(),
    "keys_of_three": lambda: columns() <= rows()[:, :1].expand(6, 6),
    "up_to_three": lambda: (columns() <= 3).expand(6, 6),
    "all_from_zero": lambda: (columns() >= 0).expand(6, 6),
    "all_above": lambda: (columns() > -1).expand(6, 6),
    "all_of_rows": lambda: (rows() >= 0).expand(6, 6),
    "one_row": lambda: (columns() <= rows(2, 3)).expand(6, 6),
    "one_position": lambda: columns() <= rows(3, 4),
    "tril": lambda: ones().tril(),
    "tril_before": lambda: ones().tril(-1),
    "tril_later": lambda: ones().tril(2),
    "triu": lambda: ones().triu(-1),
    "triu_later": lambda: ones().triu(1) | (columns() <= rows()),
    "not_triu": lambda: ~ones().triu(1),
    "not_triu_before": lambda: ~ones().triu(3),
    "not_tril": lambda: ~ones().tril(-2),
    "tril_and_triu": lambda: ones().tril() & ones().triu(-2),
    "tril_of_twos": lambda: (ones(dtype=torch.int64) * 2).tril() != 0,
    "tril_of_zeros": lambda: torch.zeros(6, 6).tril() == 0,
    "tril_not_zero": lambda: ones(dtype=torch.float32).tril() != 0,
    "tril_zero": lambda: ones(dtype=torch.float32).triu(1) == 0,
    "tril_one": lambda: ones(dtype=torch.float32).tril() == 1,
    "tril_cast": lambda: ones(dtype=torch.int64).tril().bool(),
    "tril_cast_twice": lambda: ones(dtype=torch.int64).tril().float().bool(),
    "tril_expanded": lambda: ones().tril().expand(2, 1, 6, 6),
    "tril_unsqueezed": lambda: ones().tril().unsqueeze(0).unsqueeze(1),
    "tril_new_dims": lambda: ones().tril()[None, None],
    "tril_part": lambda: ones(8, 8).tril()[:6, :6],
    "tril_later_part": lambda: ones(8, 8).tril()[2:, 2:],
    "tril_one_row": lambda: ones().tril()[:1],
    "tril_last_row": lambda: ones().tril()[5:].expand(6, 6),
    "tril_turned": lambda: ones().tril().transpose(0, 1),
    "tril_contiguous": lambda: ones().tril().contiguous(),
}
ADDED: dict[str, Callable[[], Any]] = {
    "added": lambda: added(ones().tril()),
    "added_turned": lambda: added(ones().triu(1), -math.inf, 0.0),
    "added_nothing": lambda: added(ones().tril(), 0.0, 0.0),
    "added_more": lambda: added(ones().tril(), 0.0, 5.0),
    "added_shown": lambda: added(ones().tril(), 1.0, -math.inf),
    "added_least": lambda: added(ones().tril(), 0.0, torch.finfo(torch.float32).min),
    "added_number": lambda: added(ones().tril(), 0.0, -1e4),
    "added_cast": lambda: added(ones().tril()).double().float(),
    "added_expanded": lambda: added(ones().tril()).expand(2, 4, 6, 6),
    "added_triu": lambda: torch.full((6, 6), -math.inf).triu(1),
    "added_triu_before": lambda: torch.full((6, 6), -math.inf).triu(3),
    "added_triu_least": lambda: torch.full((6, 6), torch.finfo(torch.float32).min).triu(1),
    "added_tril": lambda: torch.full((6, 6), -math.inf).tril(-3),
    "filled": lambda: torch.zeros(6, 6).masked_fill(ones().triu(1), -math.inf),
    "filled_ones": lambda: ones(dtype=torch.float32).masked_fill(ones().triu(1), -math.inf),
    "filled_window": lambda: torch.zeros(6, 6).masked_fill(columns() > rows() + 1, -math.inf),
    "filled_all": lambda: torch.zeros(6, 6).masked_fill(ones(), -math.inf),
    "filled_more": lambda: torch.zeros(6, 6).masked_fill(ones().triu(1), 2.0),
}
CONSTANTS: dict[str, Callable[[], Any]] = {
    "full": lambda: torch.full((6, 6), True),
    "full_of_nothing": lambda: torch.full((6, 6), 2.5) <= 2,
    "difference": lambda: torch.full((6, 6), 3, dtype=torch.int64) - 2 == 1,
    "difference_of_floats": lambda: torch.full((6, 6), 0.3) - 0.1 > 0.15,
    "greater": lambda: torch.full((6, 6), 3, dtype=torch.int64) > 2,
    "greater_equal": lambda: torch.full((6, 6), 3, dtype=torch.int64) >= 3,
    "less": lambda: torch.full((6, 6), 3, dtype=torch.int64) < 4,
    "less_equal": lambda: torch.full((6, 6), 3, dtype=torch.int64) <= 3,
    "unequal": lambda: torch.full((6, 6), 3, dtype=torch.int64) != 2,
    "not_greater": lambda: torch.full((6, 6), 3, dtype=torch.int64) > 3,
    "not_less": lambda: torch.full((6, 6), 3, dtype=torch.int64) < 3,
    "not_equal": lambda: torch.full((6, 6), 3, dtype=torch.int64) == 2,
    "rounded": lambda: torch.full((6, 6), 1.9).to(torch.int64) == 1,
    "summed": lambda: torch.zeros(6, 6, dtype=torch.int64).cumsum(-1) == 0,
    "summed_ones": lambda: ones(dtype=torch.int64).cumsum(-1) > 0,
    "position": lambda: (torch.arange(6)[2:3] == 2).expand(6, 6),
    "two_positions": lambda: (torch.arange(6)[2:4] <= 3)[:1].expand(6, 6),
    "differences": lambda: (torch.arange(7).diff() == 1).expand(6, 6),
    "differences_from": lambda: (torch.arange(6).diff(prepend=torch.full((1,), -1)) == 1).expand(
        6, 6
    ),
    "differences_after": lambda: (torch.arange(6).diff(prepend=torch.full((1,), -2)) > 0).expand(
        6, 6
    ),
}
for name, build in BOUNDS.items():
    case(f"mask_{name}", masked(build), Q, K, V)
for name, build in ADDED.items():
    case(f"mask_{name}", masked(build), Q, K, V)
for name, build in CONSTANTS.items():
    case(f"mask_constant_{name}", masked(build), Q, K, V)
