"""Texts that the engine writes greedily: eager's tokens, logits as exact as eager's, and a model
that trains afterwards.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compiler.test_caches import OPTIONS, build
from compiler.test_models import step, tokens, vectors
from nightly import NIGHTLY
from oracle import Errors, assert_allowed, assert_step_as_good_as_eager

ENGINE = {"inner": "engine"}
# The number of prompts, and of the tokens that follow each.
SHORT, LONG = (2, 20), (10, 200)
NAMES = ("Llama", "Mistral", "Gemma3Text", "Qwen3", "Olmo2", "Phi3")


def written(model: Any, ids: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What follows a prompt, and the logits of each new token."""
    found = model.generate(
        ids, max_new_tokens=count, return_dict_in_generate=True, output_logits=True, **OPTIONS
    )
    return found.sequences, torch.cat(found.logits)


def assert_same_texts(model: Any, prompts: list[torch.Tensor], count: int) -> Any:
    """Compiled and uncompiled it writes the same; returns the compiled one.

    Eager's logits are those of a cache and those of the whole text at once: at a token whose norm
    has little to divide, either of the two may be close by chance.
    """
    twin, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    twin.compile(backend="fusewheel", options=ENGINE)
    for ids in prompts:
        text, logits = written(twin, ids, count)
        expected, eager = written(model, ids, count)
        assert torch.equal(text, expected)
        with torch.no_grad():
            whole, wide = (m(text[:, :-1]).logits[0, ids.shape[1] - 1 :] for m in (model, exact))
        errors = Errors(eager.dtype, together=True)
        for own in (eager, whole):
            errors.add((own.double() - wide).abs(), wide)
        assert_allowed(logits, eager, wide, errors, "logits")
    return twin


def long_at_night(names: Any) -> list[Any]:
    short = [
        pytest.param(name, *SHORT, id=name, marks=NIGHTLY if number else ())
        for number, name in enumerate(names)
    ]
    return short + [pytest.param(name, *LONG, id=f"{name}-long", marks=NIGHTLY) for name in names]


@pytest.mark.parametrize(("name", "prompts", "count"), long_at_night(NAMES))
def test_small_models(name: str, prompts: int, count: int) -> None:
    model = build(name, num_hidden_layers=2, max_position_embeddings=256)
    texts = [tokens(5 + 4 * number, 1) for number in range(prompts)]
    twin = assert_same_texts(model, texts, count)
    # The same object trains: nothing of what was compiled without gradients is used.
    ids = tokens(8)
    exact = copy.deepcopy(model).double().train()
    steps = [step(one, one, ids) for one in (twin.train(), model.train(), exact)]
    assert_step_as_good_as_eager(*map(vectors, steps))
