"""Unmodified Llamas through ``inner="none"``: every kind of use gives what eager gives.

A change trains so GPT-2 (tests/compiler/test_norm_models.py), a Llama in bfloat16 with adapters
(test_peft.py), and what is not a whole model (test_executor.py, test_training.py).
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compiler.test_models import (
    LOSS,
    MODELS,
    assert_training_step,
    build,
    exact_step,
    settled,
    step,
    tokens,
    vectors,
)
from fusewheel._core.cache_argument import cache_argument
from fusewheel.compiler.entry.dynamo import compile_graph
from fusewheel.compiler.match.report import Recorder
from nightly import NIGHTLY
from oracle import assert_program_as_good_as_eager, assert_step_as_good_as_eager
from transformers import StaticCache


class Graphs:
    """A backend without an inner compiler, and what it was given."""

    def __init__(self) -> None:
        self.recorder, self.count = Recorder(), 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        self.count += 1
        return compile_graph(gm, inputs, self.recorder, "none")


@NIGHTLY
def test_training_of_any_length() -> None:
    model, backend = build("Llama"), Graphs()
    call = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
    for length in (16, 23, 9):
        ids = tokens(length)
        assert_training_step(model, call, ids)
    assert backend.count == 1
    assert settled(backend.recorder.report().counts()) == MODELS["Llama"] | LOSS


@NIGHTLY
@pytest.mark.parametrize("name", ["Gemma", "Olmo2"])
def test_training_in_bfloat16(name: str) -> None:
    model, ids = build(name, torch.bfloat16), tokens()
    call = torch.compile(model, backend=Graphs())
    assert_training_step(model, call, ids)


@NIGHTLY
@pytest.mark.parametrize("use", ["autocast", "checkpointing", "padding"])
def test_training_in_other_ways(use: str) -> None:
    model, ids, settings = build("Llama"), tokens(), {}
    if use == "checkpointing":
        old = model.gradient_checkpointing_enable  # its name in older versions
        getattr(model, "activation_checkpointing_enable", old)({"use_reentrant": False})
        settings["use_cache"] = False
    if use == "padding":
        settings["attention_mask"] = torch.ones_like(ids)
        settings["attention_mask"][0, :5] = 0
    call = torch.compile(model, backend=Graphs())
    with torch.autocast("cpu", torch.bfloat16, enabled=use == "autocast"):
        runs = [step(model, run, ids, **settings) for run in (call, model)]
    runs.append(exact_step(model, ids, **settings))
    assert_step_as_good_as_eager(*map(vectors, runs))


def test_generation_with_a_static_cache() -> None:
    """The cache is written in place, layer by layer, and its mask is shared by the layers."""
    model, backend = build("Llama").eval(), Graphs()
    ids = tokens(8)
    call = torch.compile(model, backend=backend)
    with torch.no_grad():
        keys, logits = [], []
        for run in (call, model, copy.deepcopy(model).double()):
            cache = StaticCache(config=model.config, max_cache_len=12)
            outputs = [
                run(part, **{cache_argument(): cache}, use_cache=True).logits
                for part in (ids, ids[:, :1].clone(), ids[:, 1:2].clone())
            ]
            logits.append(torch.cat(outputs, 1))
            keys.append(cache.layers[1].keys)
    assert_program_as_good_as_eager(*logits, "logits")
    assert_program_as_good_as_eager(*keys, "keys")
    assert backend.recorder.report().count("rope") == 2 * backend.count
