"""The arithmetic of the table."""

from __future__ import annotations

import pytest
from demo.examples import SETTINGS, example
from fusewheel.demo.show.results import Labels, ModeResult, PhaseResult, Row, rows


def table() -> dict[str, Row]:
    results = [example("eager"), example("inductor", speed=1.25), example("fusewheel", speed=2.0)]
    found = rows(SETTINGS, results, Labels(256, 4, 128))
    return {row.label: row for row in found}


def test_times_are_medians_in_milliseconds():
    row = table()["prefill, 256 tokens"]
    assert row.unit == "ms"
    assert row.values == pytest.approx({"eager": 500.0, "inductor": 400.0, "fusewheel": 250.0})


def test_decode_counts_the_tokens_after_the_first():
    assert table()["decode"].values["eager"] == pytest.approx((5 - 1) / 2.0)


@pytest.mark.parametrize("label", ["prefill, 256 tokens", "decode", "training step, 4 x 128"])
def test_ratios_above_one_mean_faster(label):
    row = table()[label]
    assert row.ratio("fusewheel", "eager") == pytest.approx(2.0)
    assert row.ratio("fusewheel", "inductor") == pytest.approx(1.6)


def test_less_memory_is_a_ratio_above_one():
    row = table()["peak memory, training"]
    assert row.values["eager"] == pytest.approx(400)
    assert row.ratio("fusewheel", "eager") == pytest.approx(2.0)


def test_compile_time_is_what_the_first_run_took_longer():
    row = table()["compile, generation"]
    assert row.values["inductor"] == pytest.approx(18.0)
    assert row.values["eager"] is None
    assert row.ratio("fusewheel", "eager") is None


def test_a_mode_without_figures_has_no_ratio():
    results = [example("eager"), ModeResult("fp32", "fusewheel", error="boom")]
    for row in rows(SETTINGS, results, Labels(256, 4, 128)):
        assert row.values["fusewheel"] is None
        assert row.ratio("fusewheel", "eager") is None


def test_the_median_ignores_one_disturbed_repeat():
    phase = PhaseResult(first_s=1.0, graphs=1, graph_breaks=0, seconds=[1.0, 9.0, 1.1])
    assert phase.median_s == 1.1
    result = ModeResult("fp32", "eager", phases={"train": phase})
    assert result.unsteady() == {"train": 9.0}
    assert example("eager").unsteady() == {}


def test_the_ratio_of_a_disturbed_figure_is_marked():
    disturbed = example("inductor")
    disturbed.phases["prefill"].seconds = [0.5, 0.5, 5.0]
    results = [example("eager"), disturbed, example("fusewheel", speed=2.0)]
    row = rows(SETTINGS, results, Labels(256, 4, 128))[0]
    assert row.ratio_text("fusewheel", "eager") == "2.00x"
    assert row.ratio_text("fusewheel", "inductor") == "~2.00x"
