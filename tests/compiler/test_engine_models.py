"""Models of Hugging Face run by programs of the engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiler.lowered import Engine, same
from compiler.test_models import build, tokens
from fusewheel._core.cache_argument import cache_argument
from nightly import NIGHTLY
from torch import Tensor
from transformers import DynamicCache, StaticCache


def continued(model: Any, call: Any, ids: Tensor, cache: Any, **settings: Any) -> list[Tensor]:
    """The logits of a prompt and of three tokens one by one, and what the cache then holds."""
    found = []
    with torch.no_grad():
        for piece in (ids[:, :-3], ids[:, -3:-2], ids[:, -2:-1], ids[:, -1:]):
            output = call(input_ids=piece.contiguous(), **{cache_argument(): cache}, **settings)
            found.append(output.logits)
    for layer in cache.layers:
        found += [layer.keys, layer.values]
    return found


MODELS = [
    (name, dtype)
    for name in ("Llama", "Qwen3", "Gemma", "Phi3", "Olmo2")
    for dtype in (torch.float32, torch.bfloat16)
]


@NIGHTLY  # a change compares logits with eager's in tests/compiler/test_greedy_texts.py
@pytest.mark.parametrize(("name", "dtype"), MODELS, ids=str)
def test_prompt_and_tokens(name: str, dtype: torch.dtype) -> None:
    model, ids = build(name, dtype, num_hidden_layers=1).eval(), tokens(12)
    results, engine = [], Engine()
    for backend in (Engine("none"), engine):
        torch.compiler.reset()
        call = torch.compile(model, backend=backend)
        results.append(continued(model, call, ids, DynamicCache()))
    same(results[1], results[0])
    # One for the prompt, and one for all tokens.
    assert engine.programs() == [1, 1]
    assert len(engine.calls()) < 12


def test_the_tokens_of_generate() -> None:
    model, ids = build("Llama", num_hidden_layers=1).eval(), tokens(9)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, **options)
    torch.compiler.reset()
    engine = Engine()
    model.forward = torch.compile(model.forward, backend=engine)
    assert torch.equal(model.generate(ids, **options), expected)
    # One for the prompt, and one for all tokens.
    assert engine.programs() == [1, 1]
    assert len(engine.calls()) < 12


@NIGHTLY
def test_padding_and_a_static_cache() -> None:
    """The cache is written in place between programs."""
    model, ids = build("Llama", num_hidden_layers=1).eval(), tokens(8)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    results = []
    for backend in (Engine("none"), Engine()):
        torch.compiler.reset()
        call = torch.compile(model, backend=backend)
        with torch.no_grad():
            padded = call(input_ids=ids, attention_mask=mask).logits
        cache = StaticCache(config=model.config, max_cache_len=12)
        results.append([padded, *continued(model, call, ids, cache)])
    same(results[1], results[0])


@NIGHTLY
@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_quantized(bits: str) -> None:
    import fusewheel

    model, ids = build("Llama", num_hidden_layers=1, intermediate_size=128).eval(), tokens(10)
    fusewheel.quantize_(model, bits)
    results = []
    for backend in (Engine("none"), engine := Engine()):
        torch.compiler.reset()
        call = torch.compile(model, backend=backend)
        results.append(continued(model, call, ids, DynamicCache()))
    same(results[1], results[0])
    assert engine.programs() == [1, 1]
