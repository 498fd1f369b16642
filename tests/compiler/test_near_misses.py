"""What patterns replace in small graphs, what they leave and why, with the same values."""

from __future__ import annotations

import pytest
import torch
from compiler.near_misses import CASES, OUTCOMES, outcome
from fresh import fresh
from fusewheel.compiler.cost import attention

assert fresh
WANTED = dict(line.split(" -> ", 1) for line in OUTCOMES.read_text().splitlines())


@pytest.fixture(autouse=True)
def _on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which processors attention pays on is tested by test_attention_cost.py."""
    monkeypatch.setattr(attention, "loss", lambda *args, **kwargs: None)


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_it(name: str) -> None:
    text, (wanted, *found) = outcome(CASES[name])
    assert text == WANTED[name]
    for results in found:
        for actual, value in zip(results, wanted, strict=True):
            half = {} if value.itemsize > 2 else {"rtol": 0.05, "atol": 0.05}
            torch.testing.assert_close(actual, value, equal_nan=True, **half)
            assert actual.requires_grad == value.requires_grad


def test_every_line_has_a_case() -> None:
    assert list(WANTED) == list(CASES)
