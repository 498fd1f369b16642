"""What the tables of the projection and of calls let run, without the clock."""

from __future__ import annotations

import argparse

import pytest
import torch
from benchmarks import calls, projection
from benchmarks.goals import ADD, EAGER, PRODUCTS
from oracle import assert_as_good_as_call


@pytest.fixture
def clock(monkeypatch):
    """Every competitor runs once and takes what is written here."""
    seconds = {EAGER: 3e-6, PRODUCTS: 0.9e-6, ADD: 1e-6}

    def measure(competitors, _):
        for run in competitors.values():
            run()
        return {name: seconds.get(name, 1e-6) for name in competitors}

    monkeypatch.setattr(projection, "measure", measure)
    monkeypatch.setattr(calls, "measure", measure)


@pytest.fixture
def options():
    return argparse.Namespace(
        threads=[torch.get_num_threads()],
        dtypes=["float32"],
        shapes=[(4, 8, 16)],
        seconds=0.0,
    )


def test_a_step_against_eager_and_its_products(options, clock, monkeypatch):
    peaks = iter((10, 100))
    monkeypatch.setattr(projection, "_peak", lambda step: next(peaks))
    (cell,) = projection.cells(options)
    assert (cell.case, cell.direction) == ("4x8x16", "fwd+bwd")
    assert cell.baselines == {EAGER: 3e-6, PRODUCTS: 0.9e-6}
    assert cell.flops == 6 * 4 * 8 * 16
    assert cell.goals == {"1.15x the products": True, "15% of eager's memory": True}


def test_memory_that_the_system_does_not_tell_is_no_goal(options, clock, monkeypatch):
    monkeypatch.setattr(projection, "reset_peak", lambda: False)
    (cell,) = projection.cells(options)
    assert list(cell.goals) == ["1.15x the products"]
    assert projection._memory(cell) == "unknown"


def test_the_products_are_those_of_the_gradients():
    x, weight = torch.randn(4, 8), torch.randn(16, 8)
    run = projection._products(x, weight)
    run()
    inside = dict(
        zip(run.__code__.co_freevars, (c.cell_contents for c in run.__closure__), strict=True)
    )
    torch.testing.assert_close(inside["logits"], x @ weight.T)
    torch.testing.assert_close(inside["grad_x"], inside["grad"] @ weight)
    torch.testing.assert_close(inside["grad_weight"], inside["grad"].T @ x)


def test_every_operator_in_every_mode(options, clock):
    found = list(calls.cells(options))
    assert len(found) == 3 * len(calls.OPERATORS)
    assert {c.direction for c in found} == {"no gradient", "fwd", "fwd+bwd"}
    assert found[0].goals == {"4 us": True} and found[2].goals == {}


@pytest.mark.parametrize("name", calls.OPERATORS)
def test_both_functions_of_a_call_agree(name):
    own, other = calls.OPERATORS[name]
    x, y = torch.randn(8), torch.randn(8)
    assert_as_good_as_call(own(x, y), other, x, y)
