"""What the table of operators within graphs lets run, without the clock."""

from __future__ import annotations

import argparse
import dataclasses

import fusewheel
import pytest
import torch
from benchmarks import rewrites
from fusewheel.dispatch.operator import Make

COMPETITORS = ("silu_mul", "inductor", "operator", "eager")


@pytest.fixture
def options(monkeypatch):
    """Of a table of one small operator and one large; its competitors run once, in 8, 16... s."""

    def benchmarks(make: Make):
        yield "3x8", (make(3, 8), make(3, 8))
        yield "large", (make(rewrites.MOST + 1), make(rewrites.MOST + 1))

    declared = next(o for o in fusewheel.ops.operators() if o.name == "silu_mul")
    small = dataclasses.replace(declared, benchmarks=benchmarks)

    def measure(competitors, _):
        assert tuple(competitors) == COMPETITORS
        for run in competitors.values():
            run()
        return dict(zip(COMPETITORS, (8.0, 16.0, 24.0, 32.0), strict=True))

    monkeypatch.setattr(fusewheel.ops, "operators", lambda: [small])
    monkeypatch.setattr(rewrites, "measure", measure)
    return argparse.Namespace(
        threads=[torch.get_num_threads()], operators=[], dtypes=["float32"], seconds=0.0
    )


def test_times_are_those_of_one_of_several(options, monkeypatch):
    calls = []

    def compiled(function, *, backend, options, dynamic):
        calls.append((function.__name__, options["inner"]))
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    forward, both = rewrites.cells(options)
    assert (forward.name, forward.case, forward.direction) == ("silu_mul", "3x8", "fwd")
    assert forward.seconds == 1.0
    assert forward.baselines == {"inductor": 2.0, "operator": 3.0, "eager": 4.0}
    assert both.direction == "fwd+bwd"
    assert [inner for _, inner in calls] == ["inductor", "inductor", "none", "none"] * 2
    assert rewrites.COPIES == 8


def test_nothing_becomes_an_operator_that_is_not_one(options, monkeypatch):
    monkeypatch.setattr(rewrites, "COPIES", 2)
    torch.compiler.reset()
    from torch._dynamo.utils import counters

    counters.clear()
    compile_ = torch.compile

    def without_inductor(function, *, options, **settings):
        return compile_(function, options={"inner": "none"}, **settings)

    monkeypatch.setattr(torch, "compile", without_inductor)
    assert len(list(rewrites.cells(options))) == 2
    assert counters["fusewheel"] == {}


def test_an_unknown_operator_is_refused(options):
    options.operators = ["no_such"]
    with pytest.raises(SystemExit, match=r"no such operator: \['no_such'\]; there are"):
        list(rewrites.cells(options))
