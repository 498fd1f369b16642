"""Shared setup: a pattern that raises fails its test, and nothing stays enabled."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import fusewheel
import pytest
import torch
import torch.compiler.config


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FUSEWHEEL_COMPILER_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)
    # Entries on disk may stem from operators that have been changed since.
    with torch.compiler.config.patch(cache_key_tag=uuid.uuid4().hex):
        yield
        fusewheel.inductor.disable()
    torch._dynamo.reset()
