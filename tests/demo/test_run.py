"""A whole run on a tiny model: one mode that works beside eager and one that cannot."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from demo.examples import MISSING_BACKEND, PROMPT_TOKENS
from fusewheel.demo import cli
from fusewheel.demo.measure import measure
from fusewheel.demo.progress import Progress

pytestmark = pytest.mark.long


def results(tiny_run, dtype="fp32"):
    return {result.mode: result for result in tiny_run[0].results if result.dtype == dtype}


def test_every_phase_is_measured(tiny_run, tiny_settings):
    for mode in ("eager", "aot_eager"):
        result = results(tiny_run)[mode]
        assert result.error is None
        counts = {phase: len(found.seconds) for phase, found in result.phases.items()}
        assert counts == {
            "prefill": tiny_settings.repeats,
            "decode": tiny_settings.repeats,
            "train": tiny_settings.train_repeats,
        }
        assert len(result.tokens) == tiny_settings.new_tokens
        assert result.tokens_repeat


def test_each_phase_is_one_graph(tiny_run):
    for found in results(tiny_run)["aot_eager"].phases.values():
        assert (found.graphs, found.graph_breaks) == (1, 0)
    assert all(found.graphs == 0 for found in results(tiny_run)["eager"].phases.values())


def test_modes_agree(tiny_run):
    checks = tiny_run[0].checks
    assert [check.name for check in checks if check.dtype == "fp32"] == ["tokens", "loss"]
    assert all(check.equal for check in checks if check.required)


def test_the_blocks_of_the_file_give_the_numbers_of_fp32(tiny_run):
    checks = [check for check in tiny_run[0].checks if check.dtype == "int4"]
    assert {check.name for check in checks} == {"tokens", "loss", "logits", "adapters learn"}
    assert all(check.required and check.equal for check in checks)
    expected = results(tiny_run)["eager"]
    for mode in ("eager", "aot_eager"):
        found = results(tiny_run, "int4")[mode]
        assert found.tokens == expected.tokens
        assert set(found.phases) == {"prefill", "decode", "lora"}
    # Where activations are rounded nothing is trained.
    assert set(results(tiny_run, "int4-int8")["eager"].phases) == {"prefill", "decode"}


def test_adapters_start_from_the_model_and_learn(tiny_run, tiny_settings):
    losses = results(tiny_run, "int4")["eager"].losses
    assert len(losses) == tiny_settings.train_repeats + 1
    assert losses[0] == pytest.approx(results(tiny_run)["eager"].losses[0], rel=1e-4)
    assert losses[-1] < losses[0]


def test_a_long_phase_is_timed_once(copies, tiny_settings, tiny_bundle):
    folder, _ = tiny_bundle
    settings = dataclasses.replace(tiny_settings, modes=("eager",), dtypes=("fp32",), long_s=0.0)
    found = measure(settings, folder, Progress(io.StringIO())).results[0]
    assert found.error is None
    counts = {phase: len(result.seconds) for phase, result in found.phases.items()}
    assert counts == {"prefill": 1, "decode": 1, "train": 1}
    assert all(result.once for result in found.phases.values())


def test_training_changes_the_loss(tiny_run, tiny_settings):
    losses = results(tiny_run)["eager"].losses
    assert len(losses) == tiny_settings.train_repeats + 1
    assert losses[-1] < losses[0]


def test_the_other_modes_survive_a_failing_one(tiny_run):
    report, printed = tiny_run
    broken = results(tiny_run)[MISSING_BACKEND]
    assert broken.error is not None
    assert broken.error.startswith("load: InvalidBackend")
    assert "Traceback" in broken.error_details
    assert report.failures == [f"fp32 {MISSING_BACKEND}: {broken.error}"]
    assert f"fp32 {MISSING_BACKEND}: load" in printed


def test_progress_is_plain_lines_without_a_terminal(tiny_run):
    printed = tiny_run[1]
    assert "\r" not in printed
    assert "fp32: time training, repeat 2/2" in printed


def test_publish_writes_figures_and_chart_and_fails(tiny_run, tmp_path, capsys):
    figures, chart = tmp_path / "figures.json", tmp_path / "chart.png"
    assert cli.publish(tiny_run[0], figures, chart) == 1
    written = json.loads(figures.read_text())
    assert written["machine"]["threads"] == 1
    assert written["model"]["prompt_tokens"] == PROMPT_TOKENS
    assert chart.read_bytes().startswith(b"\x89PNG")
    captured = capsys.readouterr()
    assert "the first 2 of 3 layers" in captured.out
    assert "LoRA step ms" in captured.out
    assert "llama.cpp (not asked for)" in captured.out
    assert MISSING_BACKEND in captured.err
