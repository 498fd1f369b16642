"""Windows and bounds of masks, against all that a query sees."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from fusewheel.compiler.ir.pattern import Refuse
from fusewheel.compiler.patterns.causal_attention import _check_hidden
from fusewheel.compiler.read.masks import Mask
from fusewheel.compiler.read.window import hides_fully, window_of

BOUNDS = (None, *range(-4, 5))
SIZES = list(itertools.product((1, 2, 4), (1, 3, 5)))


def seen(mask: Mask, queries: int, keys: int) -> torch.Tensor:
    """What the attributes of a mask say."""
    apart = torch.arange(keys) - torch.arange(queries)[:, None]
    shown = torch.ones(queries, keys, dtype=torch.bool)
    if mask.lower is not None:
        shown &= apart >= mask.lower
    if mask.upper is not None:
        shown &= apart <= mask.upper
    return shown


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_every_query_sees_a_key(queries: int, keys: int) -> None:
    for lower, upper in itertools.product(BOUNDS, BOUNDS):
        mask = Mask(lower, upper)
        shows = mask.shows_every_query_a_key(queries, keys)
        assert shows <= bool(seen(mask, queries, keys).any(1).all()), mask


def test_bounds_that_show_a_key() -> None:
    for lower, upper, queries, keys in (
        (None, None, 4, 1),
        (None, 0, 4, 1),
        (None, 2, 9, 3),
        (0, 0, 4, 4),
        (-2, 1, 4, 4),
        (-2, None, 4, 4),
        (0, None, 3, 4),
        (1, 1, 3, 4),
        (1, 2, 2, 4),
        (-3, 1, 3, 4),
        (0, 2, 2, 4),
    ):
        assert Mask(lower, upper).shows_every_query_a_key(queries, keys), (lower, upper)
    for lower, upper, queries, keys in (
        (None, -1, 4, 4),
        (0, None, 5, 4),
        (1, None, 4, 4),
        (1, 1, 4, 4),
        (2, 1, 2, 4),
        (-2, -1, 1, 4),
    ):
        assert not Mask(lower, upper).shows_every_query_a_key(queries, keys), (lower, upper)


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_windows_say_what_masks_say(queries: int, keys: int) -> None:
    place = torch.arange(queries)[:, None] + keys - queries
    apart = torch.arange(keys) - place
    for lower, upper in itertools.product(BOUNDS, BOUNDS):
        window = window_of(Mask(lower, upper), queries, keys)
        later = keys - queries
        left, right = (None if b is None else s * (later - b) for b, s in ((lower, 1), (upper, -1)))
        if any(bound is not None and bound < 0 for bound in (left, right)):
            assert window is None
            continue
        assert window is not None
        shown = torch.ones(queries, keys, dtype=torch.bool)
        for bound, distance in zip(window, (-apart, apart), strict=True):
            if bound != -1:
                shown &= distance <= bound
        assert torch.equal(shown, seen(Mask(lower, upper), queries, keys))
        assert [bound is None for bound in (lower, upper)] == [bound == -1 for bound in window]


def test_both_masks_hide() -> None:
    a, b = Mask(-3, None), Mask(-1, 2)
    assert (a.both(b).lower, a.both(b).upper) == (-1, 2)
    assert (b.both(a).lower, b.both(a).upper) == (-1, 2)
    assert Mask(None, 4).both(Mask(None, 2)) == Mask(None, 2)
    assert Mask().both(Mask()) == Mask()


LEAST = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    ("hidden", "dtype", "fully", "nearly"),
    [
        (None, torch.float32, False, True),
        (-math.inf, None, True, True),
        (-math.inf, torch.float16, True, True),
        (-math.inf, torch.float32, True, True),
        (-1e9, None, True, True),
        (-1e9, torch.float32, False, False),
        (LEAST, torch.float32, True, True),
        (LEAST, torch.bfloat16, True, True),
        (LEAST, torch.float16, False, False),
        (torch.finfo(torch.bfloat16).min, torch.float32, False, False),
    ],
)
def test_what_hides_a_key(
    hidden: float | None, dtype: torch.dtype | None, fully: bool, nearly: bool
) -> None:
    mask = Mask(upper=0, hidden=hidden)
    assert hides_fully(mask, 4, 4, dtype) is fully
    # A number hides a key only beside another that is seen.
    later = Mask(upper=-1, hidden=hidden)
    without_number = hidden == -math.inf or (dtype is None and hidden is not None)
    assert hides_fully(later, 4, 4, dtype) is without_number
    if nearly:
        _check_hidden(mask, dtype)
    else:
        with pytest.raises(Refuse, match="hidden scores get"):
            _check_hidden(mask, dtype)
