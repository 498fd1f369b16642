"""A model of two layers, batches for it, and a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fusewheel.quantization import LinearInt4, LinearInt8
from tiny_gguf import small_llama, write_gguf
from torch import nn


class Model(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 8))


def around(names: dict[str, Any]) -> Iterator[None]:
    model, x = Model(), torch.randn(4, 64)
    path = Path("model.gguf")
    write_gguf(path, small_llama(layers=1))
    names.update(Model=Model, model=model, batches=[x], path=str(path))
    yield
    loaded = Model()
    loaded[0], loaded[2] = (LinearInt4.from_linear(loaded[i]) for i in (0, 2))
    loaded.load_state_dict(torch.load("int4.pt"))
    torch.testing.assert_close(loaded(x), model(x))
    assert isinstance(names["model"][2], LinearInt4)
    assert isinstance(names["encoder"][2], LinearInt8) and names["encoder"][2].dynamic
    assert names["layer"].qweight is names["weight"].qweight
