"""The modes of the demo's table on the tiny model: Inductor, and fusewheel."""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from demo.examples import open_without_generated_code
from fusewheel._core.process import Child
from fusewheel.demo.measure import environment, measure
from fusewheel.demo.models.session import SessionSpec
from fusewheel.demo.progress import Progress
from fusewheel.demo.settings import MODES, Settings
from fusewheel.demo.show.checks import run_checks
from nightly import NIGHTLY

PHASES = ("prefill", "decode", "train")
REPLACED = {
    "prefill": {"grouped_attention", "rope"},
    "decode": {"grouped_attention", "rope"},
    "train": {"causal_attention", "rope", "cross_entropy"},
}


@pytest.fixture
def first_runs(
    copies: None, tiny_settings: Settings, tiny_bundle: tuple[Path, dict[str, Any]]
) -> Callable[[str], dict[str, Any]]:
    """What the first run of each phase answers, in a mode without generated code."""
    folder, _ = tiny_bundle

    def run(mode: str) -> dict[str, Any]:
        spec = SessionSpec(str(folder), mode, "fp32", tiny_settings.new_tokens, 1)
        factory = functools.partial(open_without_generated_code, spec)
        env = environment(tiny_settings, folder, mode, "fp32")
        with Child(factory, environment=env, method="fork") as child:
            return {phase: child.call("first", phase) for phase in PHASES}

    return run


def test_fusewheel_rewrites_each_phase_and_says_the_same(
    first_runs: Callable[[str], dict[str, Any]],
):
    found, eager = first_runs("fusewheel"), first_runs("eager")
    for phase, answer in found.items():
        assert (answer["graphs"], answer["graph_breaks"]) == (1, 0), phase
        assert set(answer["replacements"]) == REPLACED[phase], phase
        assert eager[phase]["graphs"] == 0
    assert found["decode"]["tokens"] == eager["decode"]["tokens"]
    assert found["train"]["loss"] == pytest.approx(eager["train"]["loss"], rel=1e-5)


@NIGHTLY
def test_every_mode_of_the_table(tiny_settings: Settings, tiny_bundle: tuple[Path, dict[str, Any]]):
    settings = dataclasses.replace(
        tiny_settings, modes=MODES, dtypes=("fp32",), repeats=1, train_repeats=1
    )
    found = measure(settings, tiny_bundle[0], Progress(io.StringIO())).results
    assert [result.mode for result in found] == list(MODES)
    checks = run_checks(settings, found)
    assert len(checks) == 4 and all(check.equal for check in checks), checks
    for result in found:
        assert result.error is None, result.error_details
        compiles, rewrites = result.mode != "eager", result.mode == "fusewheel"
        for phase in PHASES:
            assert (result.phases[phase].graphs, result.phases[phase].graph_breaks) == (compiles, 0)
            assert set(result.phases[phase].replacements) == (
                REPLACED[phase] if rewrites else set()
            )
