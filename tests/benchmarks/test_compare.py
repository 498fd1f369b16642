"""A run against an earlier one."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.compare import compare
from benchmarks.examples import CELL, run
from benchmarks.results import Run


def test_a_cell_counts_from_five_percent_on():
    found = compare(run(1.04, 1.06, 0.5), base=run(1.0, 1.0, 1.0))
    assert [now.case for _, now in found.slower] == ["2x576"]
    assert found.failed
    assert "1 of 3 cells are slower" in found.text()
    assert not compare(run(1.04, 0.5), base=run(1.0, 1.0)).failed


def test_the_worst_comes_first_with_its_baselines():
    found = compare(run(1.5, 3.0), base=run(1.0, 1.0))
    first, second, _ = found.text().splitlines()
    assert first == (
        "rms_norm 2x576 float32 2 fwd: 1000.000 -> 3000.000 ms, +200% (eager +0%, inductor +0%)"
    )
    assert second.startswith("rms_norm 1x576")


def test_other_threads_directions_and_dtypes_are_other_cells():
    base = run(1.0)
    (cell,) = base.cells
    for change in ({"threads": 1}, {"direction": "fwd+bwd"}, {"dtype": "bfloat16"}):
        now = Run("operators", base.machine, [cell, replace(cell, seconds=9.0, **change)])
        found = compare(now, base)
        assert not found.failed
        assert found.notes == ["1 cells are not in the base"]


def test_nothing_in_common_fails():
    found = compare(run(1.0), base=run())
    assert found.failed
    assert "the base has none of these cells" in found.text()


def test_pytorch_is_not_ours_to_answer_for():
    torch_itself = replace(CELL, name="eager")
    base = Run("operators", {}, [torch_itself, CELL])
    now = Run("operators", {}, [replace(torch_itself, seconds=9.0), CELL])
    assert not compare(now, base).failed


def test_another_machine_is_noted():
    assert compare(run(1.0, isa="avx2"), base=run(1.0)).notes == [
        "the base ran with isa None, this with avx2"
    ]
    assert not compare(run(1.0, threads=[1, 2]), base=run(1.0)).notes
