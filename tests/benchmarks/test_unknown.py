"""The models of the table and what it judges, without the clock."""

from __future__ import annotations

import argparse
import copy

import fusewheel
import pytest
import torch
from benchmarks import unknown
from benchmarks.goals import EAGER, INDUCTOR
from benchmarks.results import DIRECTIONS
from benchmarks.unknown_models import MODELS
from nightly import NIGHTLY
from oracle import assert_program_as_good_as_eager, tensors_of, to_dtype


@pytest.fixture(autouse=True)
def _forget():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    "direction", [pytest.param(d, marks=NIGHTLY if d == "fwd" else ()) for d in DIRECTIONS]
)
@pytest.mark.parametrize("name", MODELS)
def test_every_competitor_gives_the_values(monkeypatch, name, direction):
    # As fast as Inductor is for the clock to say; here nothing is generated.
    without = {INDUCTOR: {"backend": "eager"}}
    without[unknown.FUSEWHEEL] = {"backend": "fusewheel", "options": {"inner": "none"}}
    monkeypatch.setattr(unknown, "COMPILERS", without)
    torch.manual_seed(0)
    model, x = MODELS[name](8)
    model.train(direction != "fwd")
    runs = unknown.competitors(model, x, direction)
    assert list(runs) == [EAGER, INDUCTOR, unknown.FUSEWHEEL]
    twin, wide = copy.deepcopy(model).double(), to_dtype((x,), torch.float64)[0]
    exact = unknown.competitors(twin, wide, direction)[EAGER]()
    want = runs[EAGER]()
    assert torch.is_tensor(want) != (direction == "fwd+bwd")
    for run in runs.values():
        for results in zip(tensors_of(run()), tensors_of(want), tensors_of(exact), strict=True):
            assert_program_as_good_as_eager(*results)


@pytest.mark.parametrize("name", MODELS)
def test_no_pattern_was_written_for_them(name):
    model, x = MODELS[name](8)
    assert fusewheel.explain(model, x).counts() == {}


def test_a_row_may_be_two_percent_slower(monkeypatch):
    times = iter([{EAGER: 2.0, INDUCTOR: 0.98, unknown.FUSEWHEEL: 1.0}] * 2)
    modes = []

    def measure(competitors, seconds):
        return next(times)

    def competitors(model, x, direction):
        modes.append(model.training)

    monkeypatch.setattr(unknown, "measure", measure)
    monkeypatch.setattr(unknown, "competitors", competitors)
    chosen = argparse.Namespace(
        threads=[torch.get_num_threads()],
        models=["field of sines"],
        directions=list(DIRECTIONS),
        seconds=0.0,
    )
    first, second = unknown.cells(chosen)
    assert modes == [False, True] and (first.direction, second.direction) == DIRECTIONS
    assert first.goals == {"0.98x inductor": True}
    assert [column.text(first) for column in unknown.TABLE.columns][3:] == [
        "1000.00", "2.00", "0.98", "",
    ]  # fmt: skip
    assert unknown.panels([first]) == {
        f"fwd, threads: {first.threads}": {
            "field of sines": {"against eager": 2.0, "against inductor": 0.98}
        }
    }
