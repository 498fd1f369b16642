"""The table of experts: every way of a tiny mixture gives the same, the rest without the clock."""

from __future__ import annotations

import pytest
import torch
from benchmarks import experts
from benchmarks.goals import DENSE, EAGER, GROUPED, READ

pytest.importorskip("transformers")

TINY = experts.Sizes(experts=4, active=2, width=64, between=64, tokens=5)


@pytest.fixture(scope="module")
def modules():
    return experts.ways(TINY, torch.float32)


def run(modules, case):
    torch.manual_seed(0)
    calls, read = experts.competitors(case, modules, TINY, torch.float32, 1)
    return {name: call() for name, call in calls.items()}, read


@pytest.mark.parametrize(("case", "other"), [("token", "batched_mm"), ("prefill", GROUPED)])
def test_all_ways_are_the_same_mixture(modules, case, other):
    found, read = run(modules, case)
    ways = {experts.OWN, experts.INT4, EAGER, other}
    assert set(found) - {DENSE} == ways == set(read)
    for name in ways - {experts.INT4}:
        torch.testing.assert_close(found[name], found[EAGER])
    assert 0 < (found[experts.INT4] - found[EAGER]).norm() / found[EAGER].norm() < 0.2
    floats = 4 * TINY.experts * TINY.weights
    assert read[experts.OWN] == floats * (0.5 if case == "token" else 1)
    assert read[experts.INT4] == read[experts.OWN] * 20 / 128


def test_a_step_has_the_gradients_of_all(modules):
    found, _ = run(modules, "step")
    assert set(found) == {experts.OWN, EAGER, GROUPED}
    for own, eager, grouped in zip(*(found[n] for n in (experts.OWN, EAGER, GROUPED)), strict=True):
        torch.testing.assert_close(own, eager)
        torch.testing.assert_close(grouped, eager)


def test_what_is_judged():
    times = {experts.OWN: 1.0, EAGER: 9.0, GROUPED: 2.0}
    cells = {c.name: c for c in experts.judge("step", "float32", TINY, times, {})}
    assert cells[experts.OWN].goals == {"1.3x grouped_mm": True, "10x eager": False}
    assert cells[EAGER].goals == {}
    times = {experts.OWN: 1.0, EAGER: 2.0, READ: 1.0}
    own, _ = experts.judge("token", "float32", TINY, times, {experts.OWN: 0.9, EAGER: 0.9})
    assert own.goals == {"80% of read": True}
    texts = [column.text(own) for column in experts.TABLE.columns]
    assert texts[1] == "token 1x2/4x64" and texts[6:] == ["2.00", "-", "-", "90%",
                                                         "80% of read met"]  # fmt: skip
    assert experts.panels([own]) == {"token 1x2/4x64 against eager": {"float32": {"fusewheel": 2}}}
