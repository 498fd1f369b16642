"""The models of the table, and what it lets run, without the clock."""

from __future__ import annotations

import argparse

import pytest
import torch
from benchmarks import torchscript
from benchmarks.goals import EAGER
from benchmarks.torchscript_models import MODELS
from fusewheel import jit
from nightly import NIGHTLY
from oracle import assert_as_good_as_call

# What is replaced: a model of which nothing is would compare PyTorch with itself.
REPLACED = {
    "gated MLP": {"rms_norm": 1, "add_rms_norm": 1, "silu_mul": 2},
    "encoder layer": {"add_layer_norm": 2, "gelu": 1},
    "decoder step": {"rms_norm": 1, "add_rms_norm": 4, "silu_mul": 2, "rope": 2},
    "ranking": {"layer_norm": 2, "gelu": 2},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(m, marks=NIGHTLY if m in ("encoder layer", "decoder step") else ())
        for m in MODELS
    ],
)
def test_every_competitor_gives_the_values(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    with torch.no_grad():
        runs = torchscript.competitors(model.eval(), inputs)
        # Whether linear layers are replaced depends on the processor.
        found = {k: n for k, n in jit.explain(model, inputs).counts().items() if k != "linear"}
        assert found == REPLACED[name]
        for run in runs.values():
            assert_as_good_as_call(run(*inputs), model, *inputs)


def test_a_row_judges_the_better_of_ours(monkeypatch):
    seconds = {EAGER: 8e-6, "frozen": 6e-6, "for inf.": 5e-6, "optimize": 4e-6, "static": 2e-6}

    def measure(competitors, _):
        assert all(run() == "frozen" for run in competitors.values())
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return seconds

    modes: list[tuple[bool, bool]] = []
    monkeypatch.setattr(torchscript, "measure", measure)
    monkeypatch.setattr(torchscript, "MODELS", {"one": lambda: (torch.nn.Identity(), ())})
    runs = dict.fromkeys(seconds, lambda: "frozen")
    monkeypatch.setattr(torchscript, "competitors", lambda *_: runs)
    threads = [torch.get_num_threads()]
    found = argparse.Namespace(
        threads=threads, models=["one"], modes=list(torchscript.MODES), seconds=0.0
    )
    first, second = torchscript.cells(found)
    assert modes == [(False, False), (False, True)]
    assert (first.case, second.case) == ("no_grad", "inference_mode")
    assert first.seconds == 2e-6 and first.goals == {"3x eager": True}
    texts = [column.text(first) for column in torchscript.TABLE.columns]
    assert texts[3:] == ["8", "1.33", "1.60", "2.00", "4.00", ""]
