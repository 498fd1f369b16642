"""What the linear table lets run, without the clock."""

from __future__ import annotations

import argparse

import pytest
import torch
from benchmarks import goals, linear
from benchmarks.goals import BF16, FP32, NBITS, READ
from benchmarks.results import DIRECTIONS


@pytest.fixture
def options():
    return argparse.Namespace(
        threads=[torch.get_num_threads()],
        shapes=[(64, 96)],
        rows=[1, 4],
        directions=["fwd"],
        megabytes=1,
        seconds=0.0,
        isa="avx2",
    )


@pytest.fixture
def clock(monkeypatch):
    """Every competitor runs once and takes what is written here."""
    seconds = dict.fromkeys(linear.LAYERS, 0.001) | {FP32: 4e-3, BF16: 8e-3, READ: 1.0}

    def measure(competitors, _, pause):
        assert pause > 0
        for run in competitors.values():
            run()
        return {name: seconds[name] for name in competitors}

    monkeypatch.setattr(linear, "measure", measure)
    monkeypatch.setattr(goals, "has_avx512", lambda: True)
    return seconds


def test_every_layer_of_every_case(options, clock):
    found = list(linear.cells(options))
    assert [cell.name for cell in found] == 2 * list(linear.LAYERS)
    assert {cell.case for cell in found} == {"1x96x64", "4x96x64"}
    cell = next(c for c in found if c.name == "linear bf16" and c.case == "4x96x64")
    assert cell.baselines == {FP32: 4e-3, BF16: 8e-3}
    assert cell.flops == 2 * 4 * 96 * 64
    # The buffer of 1 MB was read in a second.
    assert cell.roof == pytest.approx(2 * 96 * 64 / 1e6)
    assert cell.goals == {"0.98x bf16": True}


def test_with_gradients(options, clock):
    options.directions, options.rows = list(DIRECTIONS), [4]
    cells = [cell for cell in linear.cells(options) if cell.direction == "fwd+bwd"]
    floating = [FP32, BF16, "linear fp32", "linear bf16", "linear fp32 x bf16"]
    assert [cell.name for cell in cells] == floating
    cell = cells[floating.index("linear bf16")]
    assert (cell.flops, cell.goals) == (3 * 2 * 4 * 96 * 64, {"0.98x bf16": True})
    assert cell.roof == pytest.approx(3 * 2 * 96 * 64 / 1e6)
    x, weight = torch.randn(4, 96), torch.randn(64, 96)
    for name in (FP32, "linear fp32"):
        grads = linear._runner(linear.LAYERS[name], x, [(weight,)], "fwd+bwd")()
        assert [grad.shape for grad in grads] == [x.shape, weight.shape]


def test_copies_make_up_the_bytes_and_lie_apart():
    copies = linear._copies(linear.STORED["int4"](torch.randn(64, 96)), 10**5)
    size = 64 * 96 // 2 + 2 * 2 * 64 * 3
    assert (len(copies) - 1) * size < 10**5 <= len(copies) * size
    assert len({part.data_ptr() for copy in copies for part in copy[:3]}) == 3 * len(copies)
    assert linear._copies((torch.zeros(9),), 1)[1:] == []


@pytest.mark.parametrize("name", linear.LAYERS)
def test_a_call_takes_the_next_copy(name):
    layer = linear.LAYERS[name]
    store = linear.STORED[layer.stored]
    copies = [store(torch.ones(32, 64)), store(torch.zeros(32, 64))]
    run = linear._runner(layer, torch.ones(4, 64), copies, "fwd")
    assert [bool(run().any()) for _ in range(4)] == [True, False, True, False]
    run = linear._runner(layer, torch.ones(4, 64), copies, "fwd", 0.5)
    assert [bool(run().any()) for _ in range(2)] == [False, True]


def test_the_chart_is_relative_to_float32(options, clock):
    (panel,) = linear.panels(list(linear.cells(options))).values()
    assert list(panel) == ["M = 1", "M = 4"]
    assert panel["M = 1"]["linear_int8"] == pytest.approx(4.0)
    assert FP32 not in panel["M = 1"]


def test_the_rival_multiplies_all_copies_at_once(options, clock, monkeypatch):
    class Products:
        copies = 400

        def __init__(self, inputs, outputs, copies, threads):
            assert (inputs, outputs, threads) == (96, 64, torch.get_num_threads())

        def of(self, rows):
            assert rows in (1, 4)
            return lambda: None

    monkeypatch.setattr(linear.matmul_nbits, "is_there", lambda: True)
    monkeypatch.setattr(linear.matmul_nbits, "Products", Products)
    options.isa = None
    clock[NBITS] = 0.4
    found = list(linear.cells(options))
    assert [cell.name for cell in found] == 2 * [*linear.LAYERS, NBITS]
    own = next(cell for cell in found if cell.name == "linear_int4 dynamic")
    assert own.ratio(NBITS) == pytest.approx(1.0)
    assert own.goals["1.2x MatMulNBits"] is False
    assert next(cell for cell in found if cell.name == NBITS).is_baseline
