"""A tiny random model under the page's name; the page shows what its blocks print."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from scripts import ROOT


def around(names: dict[str, Any]) -> Iterator[None]:
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    folder = Path("model")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    names["name"] = str(folder)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        yield
    page = (ROOT / "docs" / "transformers.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert printed.getvalue() == "".join(shown)
    assert names["model"].config._attn_implementation == "fusewheel"
    assert torch.isfinite(names["loss"])
