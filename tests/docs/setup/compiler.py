"""Checks what the page shows about the compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from fusewheel.compiler.match.registry import APPEND, known_patterns
from scripts import ROOT
from torch._dynamo.utils import counters
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
PROMPT = torch.arange(3, 9).reshape(1, 6)


def around(names: dict[str, Any]) -> Iterator[None]:
    counters.clear()
    torch.manual_seed(0)
    writer = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    writer.generation_config.eos_token_id = None
    expected = writer.generate(PROMPT, max_new_tokens=32)
    names.update(writer=writer, inputs={"input_ids": PROMPT})
    yield
    assert torch.equal(names["tokens"], expected)
    found = counters["fusewheel"]
    assert found["append"] == found["silu_mul"] * 2 > 0
    assert names["report"].counts() == {"gelu": 1, "layer_norm": 1}
    # The first compilation, one with an option, one without patterns.
    assert (found["gelu"], found["layer_norm"]) == (2, 2)
    # The table names every pattern.
    page = (ROOT / "docs" / "compiler.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`.+?) \|", page.partition("## What is replaced")[2], re.MULTILINE)
    listed = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    assert {APPEND, *(pattern.name for pattern in known_patterns())} <= listed
