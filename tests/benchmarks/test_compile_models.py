"""The table of compiled models: the worker on a tiny one, the rest without the clock."""

from __future__ import annotations

import argparse
import math
import pickle

import fusewheel
import pytest
import torch
from benchmarks import cli, compile_models, goals, results
from benchmarks.compile_models import MODELS, measure
from benchmarks.compile_worker import (
    CASES,
    EAGER,
    FUSEWHEEL,
    INDUCTOR,
    INT4,
    INT4_INT8,
    MODES,
    OPERATORS,
    OVER_INDUCTOR,
    UNCOMPILED,
    Mode,
    Sizes,
    Spec,
)
from benchmarks.goals import EAGER as GOAL_EAGER
from benchmarks.goals import INDUCTOR as GOAL_INDUCTOR
from benchmarks.goals import PEAK, model_goals
from benchmarks.tables import line
from fusewheel._core.process import ChildError
from nightly import NIGHTLY
from torch._dynamo.utils import counters

TINY = {
    **MODELS["Llama-0.3B"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
SIZES = Sizes(prompt=6, steps=3, batch=(2, 5))


@pytest.fixture(autouse=True)
def _put_back():
    threads = torch.get_num_threads()
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    torch.set_num_threads(threads)


def worker(mode, **settings):
    return pickle.loads(pickle.dumps(Spec(mode, "float32", 1, None, TINY, SIZES))).open()


def without_generator(monkeypatch, mode):
    """What a larger model gets without asking."""
    settings = {"backend": "fusewheel", "options": {"inner": "none"}}
    monkeypatch.setitem(MODES, mode, Mode(settings, MODES[mode].quantizing))


@NIGHTLY
def test_the_cases_of_a_compiled_model_are_those_of_eager(monkeypatch):
    without_generator(monkeypatch, FUSEWHEEL)
    torch.compiler.reset()
    counters.clear()
    eager, compiled = worker(EAGER), worker(FUSEWHEEL)
    torch.testing.assert_close(compiled._prefill(), eager._prefill())
    assert torch.equal(compiled._decode(), eager._decode())
    losses = [[w._train() for _ in range(3)] for w in (eager, compiled)]
    torch.testing.assert_close(*losses)
    # The loss without the logits: only then is the projection part of it.
    assert counters["fusewheel"]["linear_cross_entropy"] == 1
    assert counters["stats"]["unique_graphs"] == 3 and not counters["graph_break"]
    assert all(w.run(case) > 0 for w in (eager, compiled) for case in CASES)
    assert min(eager.measured("prefill")) >= 0


@NIGHTLY
@pytest.mark.parametrize("mode", [INT4, INT4_INT8])
def test_weights_of_four_bits(monkeypatch, mode):
    without_generator(monkeypatch, mode)
    model = worker(mode)
    assert isinstance(model._model.lm_head, fusewheel.quantization.LinearInt4)
    assert model._model.lm_head.dynamic == (mode == INT4_INT8)
    assert model._prefill().isfinite().all() and model.run("decode") > 0
    assert [MODES[mode].takes(case, "float32") for case in CASES] == [True, True, False]
    assert not MODES[mode].takes("decode", "bfloat16")


def test_weights_come_from_the_bundle(tmp_path):
    weights = worker(EAGER)._model.state_dict()
    changed = {name: value + 1 for name, value in weights.items()}
    torch.save({"config": TINY, "state": changed}, tmp_path / "bundle.pt")
    model = Spec(EAGER, "bfloat16", 1, str(tmp_path), {}, SIZES).open()._model
    torch.testing.assert_close(model.state_dict(), {n: v.bfloat16() for n, v in changed.items()})


class Remote:
    """Takes as long as is written here; the first run longer by what it compiles."""

    def __init__(self, seconds, compiling=0.0, peak=100, log=None, name="", fails=None):
        self.seconds, self.compiling, self.bytes = seconds, compiling, peak
        self.log, self.name, self.fails, self.closed = log, name, fails, 0
        self.ran = set()

    def call(self, method, *args, waiting=lambda: None):
        waiting()
        assert not self.closed
        if self.fails == (method, *args):
            raise ChildError("RuntimeError: not today")
        self.log.append(self.name)
        first = args[0] not in self.ran
        self.ran.add(args[0])
        seconds = self.seconds + self.compiling * first
        return (seconds, self.bytes) if method == "measured" else seconds

    def close(self):
        self.closed += 1


def options(**changed):
    defaults = {"cases": ["decode"], "repeats": 4, "limit": 100.0, "first_limit": 100.0}
    return argparse.Namespace(**defaults | changed)


def run(tmp_path, remotes, **changed):
    log = []
    for name, remote in remotes.items():
        remote.log, remote.name = log, name
    specs = [Spec(mode, "float32", 2, None, TINY, SIZES) for mode in remotes]
    cells = measure("Tiny", specs, options(**changed), lambda s, _: remotes[s.mode], tmp_path)
    return list(cells), log


def test_figures_of_a_case(tmp_path):
    remotes = {
        EAGER: Remote(6.0, 1.0),
        INDUCTOR: Remote(4.5, 60.0, peak=200),
        FUSEWHEEL: Remote(3.0, 40.0, peak=150),
        OVER_INDUCTOR: Remote(9.0, 5.0, peak=80),
    }
    cells, log = run(tmp_path, remotes)
    eager, inductor, fused, over = cells
    assert [c.seconds for c in cells] == [2.0, 1.5, 1.0, 3.0]  # a step of decoding
    assert [c.compiling for c in cells] == [0.0, 60.0, 40.0, 5.0]
    assert fused.goals == {"1.2x inductor": True} and over.goals == {"1.2x inductor": False}
    assert eager.goals == inductor.goals == {}
    assert eager.is_baseline and inductor.is_baseline and not over.is_baseline
    assert fused.peaks[OVER_INDUCTOR] == 80 and {c.note for c in cells} == {""}
    # One after the other in the first runs, then in turns that begin elsewhere each time.
    assert log[:12] == [mode for mode in remotes for _ in range(3)] and log[12:16] == list(remotes)
    assert log[16:20] == [INDUCTOR, FUSEWHEEL, OVER_INDUCTOR, EAGER]
    assert all(remote.closed == 1 for remote in remotes.values())


def test_quantised_weights_have_goals_and_cases_of_their_own(tmp_path):
    remotes = {INDUCTOR: Remote(3.0), FUSEWHEEL: Remote(3.0), INT4: Remote(1.0)}
    cells, _ = run(tmp_path, remotes, cases=["train", "decode"])
    assert [c.name for c in cells] == [INDUCTOR, FUSEWHEEL, *remotes]
    assert cells[-1].goals == {"3x inductor": True}
    assert run(tmp_path, {INT4: Remote(1.0)}, cases=["train"]) == ([], [])


def test_half_of_the_memory(tmp_path):
    remotes = {INDUCTOR: Remote(2.0, peak=200), FUSEWHEEL: Remote(1.0, peak=100)}
    (_, none), _ = run(tmp_path, remotes, cases=["train"])
    assert none.goals == {"1.15x inductor": True, "50% of Inductor's memory": True}
    assert none.direction == "fwd+bwd"


def test_less_memory_than_eager(tmp_path):
    remotes = {
        EAGER: Remote(1.0),
        OPERATORS: Remote(1.0, peak=95),
        UNCOMPILED: Remote(1.0, peak=96),
    }
    (_, operators, uncompiled), _ = run(tmp_path, remotes, cases=["train"])
    assert operators.goals == {"95% of eager's peak": True}
    assert uncompiled.goals == {"95% of eager's peak": False}
    assert [MODES[OPERATORS].takes(case, "float32") for case in CASES] == [False, False, True]


def test_a_model_that_calls_operators_learns_as_eager_does():
    losses = [[w._train() for _ in range(3)] for w in (worker(EAGER), worker(OPERATORS))]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=NIGHTLY)])
@pytest.mark.parametrize("mode", [OPERATORS, UNCOMPILED])
def test_less_is_kept_for_the_backward_than_in_eager(mode, dtype):
    """In bytes, of the tensors that autograd saves in a step, views of one memory counted once."""
    torch.compiler.reset()
    sizes = Sizes(batch=(4, 64))  # with few tokens, the gradients that a loss keeps weigh more
    own, eager = (
        kept_bytes(Spec(name, dtype, 1, None, TINY, sizes).open()) for name in (mode, EAGER)
    )
    assert own <= 0.95 * eager


def kept_bytes(model):
    model._train()  # what compiles does so now
    weights = {p.untyped_storage().data_ptr() for p in model._model.parameters()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model._model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model._step(model._batch)
    del loss
    return sum(kept.values())


def test_what_takes_too_long_is_bounded(tmp_path):
    remotes = {EAGER: Remote(60.0), INDUCTOR: Remote(15.0), FUSEWHEEL: Remote(1.0)}
    (eager, inductor, fused), log = run(tmp_path, remotes, repeats=5, limit=20.0)
    assert [log.count(mode) for mode in remotes] == [1, 3 + 2, 3 + 5]
    assert [c.note for c in (eager, inductor, fused)] == ["1 of 5 runs", "2 of 5 runs", ""]
    assert "2 of 5 runs" in line(compile_models.TABLE, inductor)


def test_a_long_run_is_timed_after_the_one_that_compiles(tmp_path):
    remotes = {EAGER: Remote(50.0), INDUCTOR: Remote(40.0, 60.0, peak=7)}
    (eager, inductor), log = run(tmp_path, remotes, cases=["train"], limit=20.0)
    assert [log.count(mode) for mode in remotes] == [1, 2]
    assert (eager.seconds, inductor.seconds, inductor.compiling) == (50.0, 40.0, 60.0)
    assert inductor.peaks[INDUCTOR] == 7


def test_a_first_run_that_does_not_end(tmp_path):
    remotes = {INDUCTOR: Remote(1.0), FUSEWHEEL: Remote(1.0)}
    cells, log = run(tmp_path, remotes, first_limit=-1.0, cases=["prefill", "decode"])
    assert log == [] and [remote.closed for remote in remotes.values()] == [1, 1]
    assert all(c.note == "the first run of prefill took more than -1 s" for c in cells)
    assert all(math.isinf(c.seconds) and not c.goals and not c.baselines for c in cells)
    assert "took more than" in line(compile_models.TABLE, cells[0])


@pytest.mark.parametrize("method", ["run", "measured"])
def test_a_mode_that_fails_leaves_the_others(tmp_path, method):
    remotes = {INDUCTOR: Remote(1.0, fails=(method, "prefill")), FUSEWHEEL: Remote(1.0)}
    cells, _ = run(tmp_path, remotes, cases=["prefill"])
    assert cells[0].note == "prefill failed: RuntimeError: not today"
    assert (cells[1].seconds, cells[1].note, cells[1].baselines) == (1.0, "", {})
    figures = results.Run("compile", {}, cells)
    figures.write(tmp_path / "run.json")
    assert results.read(tmp_path / "run.json") == figures
    assert compile_models.panels(cells) == {"float32, threads: 2": {"Tiny prefill": {}}}


def test_goals(monkeypatch):
    for fast, prefill in (
        (False, {GOAL_EAGER: 4.0, GOAL_INDUCTOR: 4.0}),
        (True, {GOAL_INDUCTOR: 1.0}),
    ):
        monkeypatch.setattr(goals, "has_avx512", lambda fast=fast: fast)
        assert model_goals("prefill", "bfloat16") == prefill
        assert model_goals("decode", "bfloat16") == {GOAL_INDUCTOR: 1.0}
    assert model_goals("train", "float32") == {GOAL_INDUCTOR: 1.15, PEAK: 2.0}
    assert (EAGER, INDUCTOR) == (GOAL_EAGER, GOAL_INDUCTOR)


def test_the_options(capsys):
    chosen = "--models SmolLM2-135M --cases train --modes eager --threads 1 2"
    found = cli.parse(["--table", "compile", *chosen.split()])
    assert (found.models, found.cases, found.modes) == (["SmolLM2-135M"], ["train"], ["eager"])
    assert found.dtypes == ["float32", "bfloat16"] and found.threads == [1, 2]
    with pytest.raises(SystemExit):
        cli.parse(["--table", "compile", "--models", "GPT-5"])
    assert "SmolLM2-135M" in capsys.readouterr().err
    assert "9 times" in compile_models.notes(found)


def test_the_model_without_weights_has_its_size():
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODELS["Llama-0.3B"]))
    assert 0.28e9 < sum(p.numel() for p in model.parameters()) < 0.33e9


def test_titles_fit_their_columns():
    for column in compile_models.TABLE.columns:
        assert len(column.title) <= abs(column.width) or column.title == "goals"
