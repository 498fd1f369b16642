"""`model.generate` writes the same text, over growing caches and over static ones."""

from __future__ import annotations

import copy
from typing import Any

import fusewheel
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

assert fusewheel
transformers = pytest.importorskip("transformers")
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    # Without this, transformers compiles by itself where it sees fit.
    "static": {"cache_implementation": "static", "disable_compile": True},
}
# In one layer; grouped_attention where the cache is longer than what it holds.
COUNTS = {
    "Llama": {"rms_norm": 1, "add_rms_norm": 2, "rope": 1, "silu_mul": 1},
    "Qwen3": {"rms_norm": 3, "add_rms_norm": 2, "rope": 1, "silu_mul": 1},
    "Gemma": {"rms_norm": 1, "add_rms_norm": 2, "rope": 1, "gelu_mul": 1},
}


def _model(name: str) -> Any:
    """Random weights large enough that the text is not one token over and over."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    return model


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", COUNTS)
def test_greedy_text(name: str, cache: str) -> None:
    model, counter = _model(name), CompileCounterWithBackend("eager")
    call = copy.deepcopy(model)
    counters.clear()
    call.compile(backend="fusewheel", options={"inner": counter})
    frames = []
    for length in (7, 11, 9):
        ids = torch.randint(3, 64, (2, length))
        options = CACHES[cache] | {"max_new_tokens": 8, "do_sample": False}
        expected, got = model.generate(ids, **options), call.generate(ids, **options)
        assert torch.equal(got, expected)
        assert len(set(expected[:, length:].flatten().tolist())) > 4
        frames.append(counter.frame_count)
    # The prompt, one token, any number of tokens before it; later a prompt of any length.
    assert frames[0] <= 3 and frames[1] <= frames[0] + 1 and frames[2] == frames[1], frames
    for pattern, count in COUNTS[name].items():
        assert counters["fusewheel"][pattern] == count * counter.frame_count, pattern
    assert (counters["fusewheel"]["grouped_attention"] > 0) == (cache == "static")
