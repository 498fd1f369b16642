"""Rotary embedding: the two ways to pair features, and near misses of each with their reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch

Tensor = torch.Tensor
Rotate = Callable[[Tensor], Tensor]


def halves(x: Tensor) -> Tensor:
    return torch.cat((-x[..., 4:], x[..., :4]), -1)


def neighbours(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def stacked(high: Tensor, low: Tensor, dim: int = -1) -> Tensor:
    return torch.stack((-high, low), dim).flatten(-2)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, rotate: Rotate = halves) -> Tensor:
    return x * cos + rotate(x) * sin


def inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries and keys ``[2, heads, 6, 8]``, and tables ``[2, 6, 8]``."""
    q, k, angle = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 6, 8)
    x = [t.to(dtype).requires_grad_() for t in (q, k)]
    return [*x, *(t.to(dtype) for t in (angle.cos(), angle.sin()))]


TABLES: dict[str, Callable[[Tensor], Tensor]] = {
    "of_batches": lambda t: t.unsqueeze(1),
    "of_four_dimensions": lambda t: t[:, None] * 1,
    "of_three_dimensions": lambda t: t[:1],
    "of_two_dimensions": lambda t: t[0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("rotate", [halves, neighbours])
def test_both_pairings(compare: Any, rotate: Rotate, table: str, dtype: torch.dtype) -> None:
    def both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = TABLES[table](cos), TABLES[table](sin)
        return rotated(q, cos, sin, rotate), rotated(k, cos, sin, rotate)

    report = compare(both, *inputs(dtype))
    assert report.counts() == {"rope": 1} and not report.refusals, report
    calls = [node for gm in compare.graphs for node in gm.graph.nodes]
    (call,) = (n for n in calls if n.target is torch.ops.fusewheel.rope.default)
    assert call.args[4] is (rotate is neighbours)


KEPT: dict[str, tuple[Rotate, str]] = {
    "halves_joined_elsewhere": (
        lambda x: torch.cat((-x[..., 4:], x[..., :4]), -2).view(x.shape),
        "not joined in the last dimension",
    ),
    "halves_stacked": (
        lambda x: stacked(x[..., 4:], x[..., :4]),
        "not the even and odd features",
    ),
    "pairs_stacked_elsewhere": (
        lambda x: stacked(x[..., 1::2], x[..., ::2], 2).view(x.shape),
        "not joined in the last dimension",
    ),
    "pairs_not_flattened": (
        lambda x: (torch.stack((-x[..., 1::2], x[..., ::2]), -1) * 1).flatten(-2),
        "not flattened",
    ),
    "pairs_in_another_shape": (
        lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).view(-1).view(x.shape),
        "not flattened",
    ),
    "halves_of_two_tensors": (
        lambda x: torch.cat((-(x + 1)[..., 4:], x[..., :4]), -1),
        "not the two halves of one tensor",
    ),
    "halves_of_rows": (
        lambda x: torch.cat((-x[:, :, 3:], x[:, :, :3]), 2),
        "not the two halves of one tensor",
    ),
    "not_at_the_end": (
        lambda x: torch.cat((-x[..., 4:7], x[..., :4], x[..., 7:]), -1),
        "",
    ),
    "with_gaps": (
        lambda x: torch.cat((-x[..., 4:], x[..., ::2]), -1),
        "not the two halves of one tensor",
    ),
    "of_another_tensor": (lambda x: halves(x + 1), "cos does not multiply the tensor"),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(compare: Any, name: str) -> None:
    rotate, reason = KEPT[name]

    def both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return rotated(q, cos, sin, rotate), rotated(k, cos, sin, rotate)

    report = compare(both, *inputs())
    assert report.counts() == {}, report
    reasons = [refusal.reason for refusal in report.refusals]
    assert any(reason in given for given in reasons) if reason else not reasons, report


def test_tables_of_two_shapes(compare: Any) -> None:
    def both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(1), sin[:1].unsqueeze(1)
        return rotated(q, cos, sin), rotated(k, cos, sin)

    report = compare(both, *inputs())
    assert report.counts() == {}
    assert "cos and sin have different shapes" in report.refusals[0].reason


@pytest.mark.parametrize("other", ["cos", "sin", "pairing", "length", "dtype"])
def test_two_tensors_that_are_not_rotated_alike(compare: Any, other: str) -> None:
    def both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos[:1].unsqueeze(1), sin[:1].unsqueeze(1)
        first = rotated(q, cos, sin)
        if other == "cos":
            cos = cos + 1
        elif other == "sin":
            sin = sin + 1
        elif other == "length":
            k, cos, sin = k[:, :, :3], cos[:, :, :3], sin[:, :, :3]
        elif other == "dtype":
            k, cos, sin = k.double(), cos.double(), sin.double()
        return first, rotated(k, cos, sin, neighbours if other == "pairing" else halves)

    report = compare(both, *inputs())
    assert report.counts() == {}, report
    assert {r.reason for r in report.refusals} == {
        "no second tensor is rotated by the same cos and sin"
    }


assert fusewheel
