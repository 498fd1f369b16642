"""The report as text and as JSON."""

from __future__ import annotations

import dataclasses
import json

from demo.examples import example, example_report
from fusewheel.demo.show import report as render
from fusewheel.demo.show.results import ModeResult


def complete():
    return example_report(
        example("eager"), example("inductor", speed=1.25), example("fusewheel", speed=2.0)
    )


def test_table_lines_up_and_ends_with_the_ratios():
    lines = render.table(complete()).splitlines()
    assert lines[0].strip().endswith("fusewheel  vs eager  vs inductor")
    prefill = next(line for line in lines if "prefill" in line)
    assert prefill.split()[-5:] == ["500.0", "400.0", "250.0", "2.00x", "1.60x"]
    assert len({len(line) for line in lines if "x" in line[-1:]}) == 1


def test_verdict_shows_the_text_and_says_identical():
    text = render.verdict(complete())
    assert "some text" in text
    assert "identical in all modes" in text


def test_a_failed_mode_shows_in_table_and_verdict():
    broken = ModeResult("fp32", "fusewheel", error="load: boom", error_details="Traceback ...")
    report = example_report(example("eager"), broken)
    assert "failed" in render.table(report)
    assert "FAILED fp32 fusewheel: load: boom" in render.verdict(report)
    assert "identical" not in render.verdict(report)
    assert report.failures == ["fp32 fusewheel: load: boom"]


def test_a_graph_break_is_noted():
    result = example("inductor")
    result.phases["decode"].graphs = 2
    result.phases["decode"].graph_breaks = 1
    assert "2 graphs, 1 graph breaks" in " ".join(render.notes(example_report(result)).split())


def test_replacements_are_noted():
    result = example("fusewheel")
    result.phases["train"].replacements = {"rms_norm": 61}
    assert "replaced 61 x rms_norm" in render.notes(example_report(result))


def test_disturbed_timings_are_noted():
    result = example("eager")
    result.phases["prefill"].seconds = [0.1, 0.5]
    assert "UNSTEADY" in render.notes(example_report(result))


def test_a_phase_timed_once_is_noted():
    slow = example("eager")
    slow.phases["train"].once = True
    assert "Timed once, because it takes more than 30 s: fp32 eager train." in render.notes(
        example_report(slow, example("fusewheel"))
    )
    assert "Timed once" not in render.notes(example_report(example("eager")))


def test_json_schema():
    report = dataclasses.replace(complete(), left_out=["bf16"])
    figures = json.loads(report.to_json())
    assert set(figures) == {
        "schema",
        "settings",
        "model",
        "machine",
        "results",
        "rows",
        "checks",
        "formats",
        "text",
        "left_out",
        "failures",
    }
    assert figures["schema"] == render.SCHEMA_VERSION
    assert figures["rows"][0]["ratios"] == {"eager": 2.0, "inductor": 1.6}
    assert figures["results"][0]["phases"]["prefill"]["seconds"] == [0.5, 0.5, 0.5]
    assert figures["settings"]["modes"] == ["eager", "inductor", "fusewheel"]
