"""A fixture that what compiles is tested with."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import torch
import torch.compiler.config
from fusewheel.compiler.cost import rates, rules

loss = rules.loss


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test starts with empty caches, and a pattern that raises fails it."""
    monkeypatch.setenv("FUSEWHEEL_COMPILER_STRICT", "1")
    # Tensors of tests are tiny. Tests of what does not pay there put `loss` back.
    monkeypatch.setattr(rules, "loss", lambda node, inner, pattern: None)
    # What is chosen is the same on every machine.
    for name, value in zip(rates.VARIABLES, rates.SHARED, strict=True):
        monkeypatch.setenv(name, str(value))
    torch.compiler.reset()
    torch.manual_seed(0)
    # Entries on disk may stem from operators that have been changed since.
    with torch.compiler.config.patch(cache_key_tag=uuid.uuid4().hex):
        yield
    torch.compiler.reset()
