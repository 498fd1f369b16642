"""What `nox -s bench_cuda` prints, with another clock and on the CPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from cuda_emulated.counts.cases import PREDICTED
from cuda_emulated.counts.predicted import GPUS, seconds, stored
from on_gpu import bench
from on_gpu.liger import FUNCTIONS, liger
from on_gpu.timing import Call

NORM = next(case for case in PREDICTED if case.operator == "rms_norm")
H100 = next(gpu for gpu in GPUS if gpu.name == "H100 SXM")


def clock(call: Call) -> float:
    call()
    return 1e-3


def test_measured_and_predicted_times_stand_side_by_side(monkeypatch):
    def compile_nothing(function, dynamic):
        def fails(*arguments):
            raise RuntimeError("no compiler\nis here")

        return fails

    monkeypatch.setattr(torch, "compile", compile_nothing)
    row, notes = bench.timed(replace(NORM, full=4), H100, "cpu", clock)
    assert set(row) >= {"copy", "predicted", "measured", "eager"}
    assert row["predicted"] == seconds(stored(NORM), H100)
    assert notes == [f"{NORM.name}, Inductor: RuntimeError: no compiler"]
    row["predicted"] = 2e-3
    assert bench.line("a", row) == "| a | 1,000.0 | 2,000.0 | 1,000.0 | 1,000.0 | - | - | 0.50 |"
    assert all(text.count("|") == 9 for text in list(bench.header(H100))[1:])


def test_a_failure_of_the_kernels_ends_the_table(monkeypatch):
    def broken(call: Call) -> float:
        raise RuntimeError("launch failed")

    monkeypatch.setattr(bench, "competitors", lambda *a: [("measured", lambda: None)])
    with pytest.raises(RuntimeError, match="launch failed"):
        bench.timed(replace(NORM, full=4), H100, "cpu", broken)


def test_a_gpu_is_known_by_its_name_or_describes_itself():
    assert bench.gpu_here(SimpleNamespace(name="NVIDIA H100 80GB HBM3")) is H100
    other = SimpleNamespace(
        name="NVIDIA GeForce RTX 3090",
        major=8,
        minor=6,
        memory_clock_rate=9_751_000,
        memory_bus_width=384,
        multi_processor_count=82,
        clock_rate=1_695_000,
    )
    found = bench.gpu_here(other)
    assert (found.name, found.capability) == (other.name, "86")
    assert found.bandwidth == pytest.approx(936e9, rel=1e-3)
    assert found.float32 == pytest.approx(35.6e12, rel=1e-2)


def test_cases_are_chosen_by_operator():
    assert [case.operator for case in bench.chosen(["rope_"])] == ["rope_"]
    assert bench.chosen([]) == list(PREDICTED)
    with pytest.raises(SystemExit, match="no case is called gone"):
        bench.chosen(["gone"])


def test_liger_gets_the_operators_arguments(monkeypatch):
    assert set(FUNCTIONS) <= {case.operator for case in PREDICTED}
    functions = SimpleNamespace(liger_rms_norm=lambda x, weight, eps: (x, weight, eps))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.functional", functions)
    call = liger("rms_norm", (1, 2, 3, 0))
    assert call is not None and call() == (1, 2, 3)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.functional", None)
    assert liger("rms_norm", (1, 2, 3, 0)) is None
    assert liger("mul", (1, 2)) is None
