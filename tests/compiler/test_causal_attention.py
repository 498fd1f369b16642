"""Attention with a mask that says no more than causal, and masks that say more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("calls_stay")
Tensor = torch.Tensor
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
LENGTH = 24


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, **options)


def causal(q: Tensor, k: Tensor) -> Tensor:
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()


def added(q: Tensor, k: Tensor, value: float) -> Tensor:
    return torch.full((q.shape[-2], k.shape[-2]), value, dtype=q.dtype).triu(1)


def least(q: Tensor) -> float:
    return torch.finfo(q.dtype).min


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.25).masked_fill(~causal(q, k), -torch.inf).softmax(-1) @ v


def packed(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """As Hugging Face hides the other sequences of a row, which begin where positions jump."""
    rows = torch.arange(q.shape[0])[:, None, None, None]
    queries = (torch.arange(q.shape[2]) + 0)[None, None, :, None]
    keys = (torch.arange(k.shape[2]) + 0)[None, None, None, :]
    positions = positions.expand(q.shape[0], -1)
    jumps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    sequence = jumps.cumsum(-1)
    mask = queries.new_ones((), dtype=torch.bool)
    mask = mask & (sequence[rows, queries] == sequence[rows, keys])
    mask = mask & (positions[rows, keys] <= positions[rows, queries])
    return attend(q, k, v, mask.expand(q.shape[0], -1, q.shape[2], k.shape[2]))


def positions(q: Tensor, start: int = 0) -> Tensor:
    return (torch.arange(q.shape[-2]) + start)[None]


CAUSAL: dict[str, Attend] = {
    "boolean": lambda q, k, v: attend(q, k, v, causal(q, k)),
    "positions": lambda q, k, v: attend(
        q, k, v, torch.arange(k.shape[-2]) <= torch.arange(q.shape[-2])[:, None], scale=0.3
    ),
    "broadcast": lambda q, k, v: attend(q, k, v, causal(q, k)[None, None].expand(2, 3, -1, -1)),
    "added": lambda q, k, v: attend(q, k, v, added(q, k, -torch.inf)),
    "least": lambda q, k, v: attend(q, k, v, added(q, k, least(q))),
    "by_hand": by_hand,
    "one_sequence": lambda q, k, v: packed(q, k, v, positions(q)),
    "one_sequence_from_7_on": lambda q, k, v: packed(q, k, v, positions(q, 7)),
    "groups": lambda q, k, v: attend(q, k[:, :1], v[:, :1], causal(q, k), enable_gqa=True),
}


def inputs(
    dtype: torch.dtype = torch.float32,
    queries: int = LENGTH,
    keys: int = LENGTH,
    grad: bool = True,
) -> list[Tensor]:
    sizes = queries, keys, keys
    return [torch.randn(2, 3, n, 16).to(dtype).requires_grad_(grad) for n in sizes]


def calls(compare: Any) -> list[torch.fx.Node]:
    """The attentions of all graphs."""
    return [n for gm in compare.graphs for n in gm.graph.nodes if "attention" in str(n.target)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CAUSAL)
def test_causal(compare: Any, name: str, dtype: torch.dtype) -> None:
    report = compare(CAUSAL[name], *inputs(dtype), inner="eager", whole=True)
    assert report.count("causal_attention") == 1, report
    assert [call.mask for call in report.attentions] == ["causal"]
    (call,) = calls(compare)
    assert call.args[3:] == (None, 0.0, True)


@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (9, 5), (1, 7)])
def test_other_numbers_of_keys(compare: Any, queries: int, keys: int) -> None:
    """The first query sees the first key, however many there are of both."""
    tensors = inputs(queries=queries, keys=keys)
    report = compare(CAUSAL["boolean"], *tensors, inner="eager", whole=True)
    assert report.counts() == {"causal_attention": 1}


def test_without_what_makes_the_mask(compare: Any) -> None:
    """Nothing of it is computed."""
    compare(CAUSAL["one_sequence"], *inputs(grad=False), inner="none")
    assert len(compare.targets()) == 1


@pytest.mark.parametrize("name", ["boolean", "by_hand", "one_sequence"])
def test_any_length(compare: Any, name: str) -> None:
    compiled, recorder = compare.compile(CAUSAL[name], "eager", dynamic=True)
    for length in (5, 9, 24):
        tensors = inputs(queries=length, keys=length)
        torch.testing.assert_close(compiled(*tensors), CAUSAL[name](*tensors))
    assert recorder.graphs == 1
    assert recorder.report().count("causal_attention") == 1, recorder.report()


def test_autocast(compare: Any) -> None:
    """What the call computes in is the same."""

    def attend_in_bfloat16(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return CAUSAL["boolean"](q, k, v)

    report = compare(attend_in_bfloat16, *inputs(), inner="eager")
    assert report.counts() == {"causal_attention": 1}, report


def _checkpoint(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, depth: int = 1) -> Tensor:
    """Attention in the body of a checkpoint, or of one inside of another, given its mask."""
    if depth == 0:
        return attend(q, k, v, mask)
    result: Tensor = checkpoint(_checkpoint, q, k, v, mask, depth - 1, use_reentrant=False)
    return result


@pytest.mark.parametrize("depth", [1, 2])
def test_mask_from_outside_of_a_checkpoint(compare: Any, depth: int) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = causal(q, k)
        first = _checkpoint(q, k, v, mask, depth)
        return _checkpoint(first, k, v, mask[None, None], depth)

    report = compare(f, *inputs(), whole=True)
    assert report.counts() == {"causal_attention": 2}, report
    assert [(call.count, call.mask) for call in report.attentions] == [(2, "causal")]


def _changed_before(q: Tensor, k: Tensor, v: Tensor, keys: Tensor) -> Tensor:
    mask = causal(q, k)
    mask[1, 0] = False
    return _checkpoint(q, k, v, mask)


def _changed_after(q: Tensor, k: Tensor, v: Tensor, keys: Tensor) -> Tensor:
    """The backward pass runs the body again, with what the mask is then."""
    mask = causal(q, k)
    result = _checkpoint(q, k, v, mask)
    mask[1, 0] = False
    return result


FROM_OUTSIDE: dict[str, tuple[Callable[..., Tensor], str]] = {
    "changed_before": (_changed_before, "arbitrary"),
    "changed_after": (_changed_after, "arbitrary"),
    "padding": (
        lambda q, k, v, keys: _checkpoint(q, k, v, causal(q, k) & keys[:, None, None]),
        "causal + padding",
    ),
    "given": (lambda q, k, v, keys: _checkpoint(q, k, v, keys[:, None, None] & keys[:1]), ""),
}


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_other_masks_from_outside_of_a_checkpoint(compare: Any, name: str) -> None:
    function, kind = FROM_OUTSIDE[name]
    keys = torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]])
    report = compare(function, *inputs(grad=False), keys, inner="eager")
    assert report.counts() == {}, report
    assert [r.reason for r in report.refusals] == ([NOT_ALONE + kind] if kind else []), report


def _jumps(q: Tensor) -> Tensor:
    """Where positions do not follow their predecessor: at the first, which is given twice."""
    at = positions(q)
    before = (at[:, :1] - 1).expand(1, 2)
    return (torch.diff(at, prepend=before, dim=-1) != 1)[:, :LENGTH]


def _written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = causal(q, k)
    mask[1, 0] = False
    return attend(q, k, v, mask)


NOT_ALONE = "the mask is not known to be causal alone: "
# What is given is positions, the number of tokens in a cache, which keys are tokens, a mask.
OTHER: dict[str, tuple[Callable[..., Tensor], str]] = {
    "a_diagonal_more": (
        lambda q, k, v, *_: attend(q, k, v, torch.ones(LENGTH, LENGTH).tril(1).bool()),
        NOT_ALONE + "causal, +1",
    ),
    "a_diagonal_less": (
        lambda q, k, v, *_: attend(q, k, v, torch.ones(LENGTH, LENGTH).tril(-1).bool()),
        NOT_ALONE + "causal, -1",
    ),
    "sliding_window": (
        lambda q, k, v, *_: attend(q, k, v, causal(q, k).triu(-2) & causal(q, k)),
        NOT_ALONE + "causal + arbitrary",
    ),
    "window_of_positions": (
        lambda q, k, v, *_: attend(
            q, k, v, causal(q, k) & (torch.arange(LENGTH) > torch.arange(LENGTH)[:, None] - 3)
        ),
        NOT_ALONE + "sliding window [-2, 0]",
    ),
    "padding": (
        lambda q, k, v, at, n, keys, mask: attend(q, k, v, causal(q, k) & keys[:, None, None]),
        NOT_ALONE + "causal + padding",
    ),
    "packed_sequences": (
        lambda q, k, v, at, n, keys, mask: packed(q, k, v, at),
        NOT_ALONE + "arbitrary",
    ),
    "a_cache": (
        lambda q, k, v, at, n, keys, mask: attend(
            q, k, v, torch.arange(LENGTH) <= (torch.arange(LENGTH) + n)[:, None]
        ),
        NOT_ALONE + "arbitrary",
    ),
    "given": (
        lambda q, k, v, at, n, keys, mask: attend(q, k, v, mask),
        NOT_ALONE + "arbitrary",
    ),
    "written": (lambda q, k, v, *_: _written(q, k, v), NOT_ALONE + "arbitrary"),
    "one_row_for_all": (
        lambda q, k, v, *_: attend(
            q, k, v, torch.arange(LENGTH).expand(LENGTH, -1) <= torch.arange(1)[:, None]
        ),
        NOT_ALONE + "arbitrary",
    ),
    "one_place_for_all": (
        lambda q, k, v, *_: attend(
            q, k, v, torch.arange(LENGTH) <= torch.arange(1)[:, None].expand(LENGTH, 1)
        ),
        NOT_ALONE + "arbitrary",
    ),
    "first_row_for_all": (
        lambda q, k, v, *_: attend(q, k, v, causal(q, k)[:1]),
        "",
    ),
    "first_row_of_a_triangle_for_all": (
        lambda q, k, v, *_: attend(
            q, k, v, torch.ones(1, LENGTH).tril() != torch.zeros(LENGTH, LENGTH)
        ),
        "",
    ),
    "a_jump": (
        lambda q, k, v, *_: attend(q, k, v, causal(q, k) & (_jumps(q) == 0)),
        NOT_ALONE + "causal + padding",
    ),
    "rounded_positions": (
        lambda q, k, v, *_: attend(
            q, k, v, torch.arange(LENGTH) <= torch.arange(LENGTH)[:, None].bfloat16()
        ),
        NOT_ALONE + "arbitrary",
    ),
    "wrapped_positions": (
        lambda q, k, v, *_: attend(
            q,
            k,
            v,
            torch.arange(LENGTH) + 240 <= (torch.arange(LENGTH) + 240)[:, None].to(torch.uint8),
        ),
        NOT_ALONE + "arbitrary",
    ),
    "little_is_added": (
        lambda q, k, v, *_: attend(q, k, v, added(q, k, -5.0)),
        "hidden scores get -5 added, which may not hide them fully",
    ),
    "reversed": (lambda q, k, v, *_: attend(q, k, v, causal(q, k).mT), NOT_ALONE + "arbitrary"),
    # Nothing like causal: no word about it.
    "only_padding": (
        lambda q, k, v, at, n, keys, mask: attend(q, k, v, keys[:, None, None]),
        "",
    ),
    "bias": (lambda q, k, v, at, n, keys, mask: attend(q, k, v, mask.to(q.dtype)), ""),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_masks_are_kept(compare: Any, name: str) -> None:
    function, reason = OTHER[name]
    at = torch.arange(LENGTH).remainder(9)[None]
    keys = torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]])
    mask = torch.rand(LENGTH, LENGTH).round().bool() | torch.eye(LENGTH, dtype=torch.bool)
    given = *inputs(grad=False), at, torch.tensor(2), keys, mask
    report = compare(function, *given, inner="eager")
    assert report.counts() == {}, report
    assert [r.reason for r in report.refusals] == ([reason] if reason else []), report


def test_least_number_of_float16(compare: Any) -> None:
    """Other scores may be of that size."""
    report = compare(CAUSAL["least"], *inputs(torch.float16, grad=False), inner="eager")
    (refusal,) = report.refusals
    assert refusal.reason == "hidden scores get -65504 added, which may not hide them fully"


def test_dropout_is_kept(compare: Any) -> None:
    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, causal(q, k), dropout_p=0.5)

    (refusal,) = compare(dropped, *inputs(), inner="eager").refusals
    assert refusal.reason == "dropout may be active: other random numbers would be drawn"


def test_what_is_not_finite(compare: Any) -> None:
    """It spoils the queries that see it, and not the earlier ones too."""
    q, k, v = inputs(grad=False)
    v[:, :, LENGTH // 2] = math.nan
    compiled, _ = compare.compile(CAUSAL["boolean"], "eager")
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(compiled(q, k, v), expected, equal_nan=True)
