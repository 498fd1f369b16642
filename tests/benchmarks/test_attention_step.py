"""The step with either attention, of a model of one layer."""

from __future__ import annotations

import fusewheel
import pytest
from benchmarks import attention_step


@pytest.mark.parametrize("attention", ["fusewheel", "pytorch"])
def test_steps_are_timed(attention: str, monkeypatch: pytest.MonkeyPatch):
    chosen = []
    monkeypatch.setattr(fusewheel.compiler, "disable", chosen.append)
    small = {"vocab_size": 32, "hidden_size": 18, "intermediate_size": 16}
    monkeypatch.setattr(attention_step, "_SHAPE", attention_step._SHAPE | small)
    given = ["--attention", attention, "--layers", "1", "--batch", "1", "--tokens", "8"]
    options = attention_step.parse([*given, "--steps", "1"])
    (step,) = attention_step.seconds_of_steps(options)
    assert step > 0
    assert chosen == (["attention"] if attention == "pytorch" else [])
