"""What the table of operators lets run, without the clock."""

from __future__ import annotations

import argparse
import dataclasses

import fusewheel
import pytest
import torch
from benchmarks import operators
from fusewheel.ops.loss.cross_entropy import OPERATORS

SIZE = 3 * 8 * 4


@pytest.fixture
def options(monkeypatch):
    """Of a table of one small operator, whose competitors run once and take 1, 2 and 4 ms."""

    def benchmarks(make):
        yield "3x8", (make(3, 8), make(3, 8))

    declared = next(o for o in fusewheel.ops.operators() if o.name == "silu_mul")
    small = dataclasses.replace(declared, benchmarks=benchmarks)

    def measure(competitors, _):
        for run in competitors.values():
            run()
        return dict(zip(("fusewheel", "eager", "inductor"), (1e-3, 2e-3, 4e-3), strict=True))

    monkeypatch.setattr(fusewheel.ops, "operators", lambda: [small])
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(operators, "measure", measure)
    monkeypatch.setattr(operators, "copy_seconds_per_byte", lambda: 1e-6)
    return argparse.Namespace(
        threads=[torch.get_num_threads()], operators=[], dtypes=["float32"], seconds=0.0
    )


def test_a_cell_of_each_direction(options):
    forward, both = operators.cells(options)
    assert (forward.name, forward.case, forward.direction) == ("silu_mul", "3x8", "fwd")
    assert (forward.seconds, forward.baselines) == (1e-3, {"eager": 2e-3, "inductor": 4e-3})
    # Two inputs and the output; backward reads these again and writes two gradients.
    assert forward.roof == pytest.approx(3 * SIZE * 1e-6)
    assert (both.direction, both.roof) == ("fwd+bwd", pytest.approx(8 * SIZE * 1e-6))


def test_an_unknown_operator_is_refused(options):
    options.operators = ["no_such"]
    with pytest.raises(SystemExit, match=r"no such operator: \['no_such'\]; there are"):
        list(operators.cells(options))


def test_the_chart_has_a_mean_over_the_sizes(options):
    forward, both = operators.cells(options)
    slow = dataclasses.replace(forward, case="9x9", seconds=4e-3)
    found = operators.panels([forward, slow, both])
    first, second = found
    assert first.startswith("float32, fwd, ") and second.startswith("float32, fwd+bwd, ")
    assert found[first]["silu_mul"]["against eager"] == pytest.approx(1.0)
    assert found[second]["silu_mul"]["against inductor"] == pytest.approx(4.0)


def test_a_rival_gets_the_arguments_of_the_public_function(options, monkeypatch):
    def benchmarks(make):
        yield "3x8", (make(3, 8), torch.tensor([1, 2, 3]))

    declared = next(o for o in OPERATORS if o.name == "cross_entropy")
    small = dataclasses.replace(declared, benchmarks=benchmarks)
    monkeypatch.setattr(fusewheel.ops, "operators", lambda: [small])
    forward, both = operators.cells(options)
    # The logits, three targets and the loss; backward reads these again and writes a gradient.
    assert forward.roof == pytest.approx((SIZE + 24 + 4) * 1e-6)
    assert both.roof == pytest.approx((3 * SIZE + 48 + 8) * 1e-6)


@pytest.mark.parametrize("name", [o.name for o in fusewheel.ops.operators() if o.benchmarks])
def test_the_result_is_trained(name):
    """Also where it is kept for the backward, as that of attention is."""
    operator = next(o for o in fusewheel.ops.operators() if o.name == name)
    results = tuple(range(len(operator.overload._schema.returns)))
    assert operators.trained(operator, results)[0] == 0
