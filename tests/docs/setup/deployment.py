"""A model of three layers, which compiles quickly, and the path of the CPU library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from without_front import cpu_library


def around(names: dict[str, Any]) -> Iterator[None]:
    model = nn.Sequential(nn.Embedding(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)).eval()
    tokens = torch.arange(8).view(2, 4)
    names.update(model=model, tokens=tokens, library=str(cpu_library()))
    with torch.no_grad():
        expected = model(tokens)
        yield
    for file in ("program.pt2", "package.pt2", "model.pt"):
        assert Path(file).exists()
    torch.testing.assert_close(names["logits"], expected)
