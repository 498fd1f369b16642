"""Tiny models under the page's names; what is trained gets a smaller loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from shown_pages import trainer
from tiny_gguf import small_llama, write_gguf

TOKENS = ("<e>", *"abcdefghijklmnopqrstuvwxyz", "ab")


def around(names: dict[str, Any]) -> Iterator[None]:
    path = Path("model.gguf")
    write_gguf(path, small_llama(layers=1, vocab_size=len(TOKENS)), tokens=TOKENS)
    ids = torch.arange(1, 25).view(2, 12)
    names.update(
        model=small_llama(layers=1),
        dataset=[{"input_ids": row, "labels": row} for row in ids.tolist()],
        batches=[{"input_ids": ids, "labels": ids}] * 10,
        path=str(path),
    )
    with contextlib.redirect_stdout(None), trainer():
        yield
    torch.compiler.reset()
    assert names["result"].global_step == 2
    assert names["losses"][-1] < names["losses"][0]
    assert Path("adapters/adapter_config.json").exists()
    assert torch.isfinite(names["loss"])
