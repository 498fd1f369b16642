"""`model.generate` with a compiled forward: the tokens, and how many graphs it takes."""

from __future__ import annotations

from typing import Any

import fusewheel
import pytest
import torch
from compiler.test_models import build, tokens
from nightly import NIGHTLY
from torch._dynamo.utils import counters


def _generate(model: Any, prompts: list[torch.Tensor], cache: str, **settings: Any) -> list[Any]:
    """The prompts and what follows; with settings the forward is compiled."""
    torch.compiler.reset()
    counters.clear()
    plain = model.forward
    if settings:
        model.forward = torch.compile(plain, **settings)
    # Without an end each prompt gets as many tokens; on a GPU generation would compile by itself.
    options = {"max_new_tokens": 4, "eos_token_id": None, "disable_compile": True}
    results = [
        model.generate(ids, do_sample=False, cache_implementation=cache, **options)
        for ids in prompts
    ]
    model.forward = plain
    return [tokens.tolist() for tokens in results]


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("Llama", "dynamic"),
        pytest.param("Llama", "static", marks=NIGHTLY),
        pytest.param("Qwen3", "dynamic", marks=NIGHTLY),
        pytest.param("Gemma", "static", marks=NIGHTLY),
    ],
)
def test_generate(name: str, cache: str) -> None:
    """Two prompts of two lengths: a cache that grows takes one graph less than elsewhere."""
    model, prompts = build(name, num_hidden_layers=1).eval(), [tokens(8), tokens(11)]
    expected = _generate(model, prompts, cache)
    assert _generate(model, prompts, cache, backend="eager") == expected
    graphs = counters["stats"]["unique_graphs"]
    options = {"inner": "none"}
    with fusewheel.compiler.disable("capture"):
        assert _generate(model, prompts, cache, backend="fusewheel", options=options) == expected
    own = counters["stats"]["unique_graphs"]
    assert own == graphs - (cache == "dynamic") > 1
    graphs = own
    assert not counters["graph_break"]
    # One layer: its activation, its rotation, and two norms behind the embedding's.
    found = counters["fusewheel"]
    assert found["silu_mul"] + found["gelu_mul"] == found["rope"] == graphs
    assert found["add_rms_norm"] == 2 * graphs
    # Behind a mask the model repeats its keys and values itself.
    assert (found["grouped_attention"] > 0) == (cache == "static")
