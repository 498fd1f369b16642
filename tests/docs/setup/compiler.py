"""Checks what the page shows about the compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fusewheel.compiler.match.registry import known_patterns
from scripts import ROOT
from torch._dynamo.utils import counters


def around(names: dict[str, Any]) -> Iterator[None]:
    counters.clear()
    yield
    assert names["report"].counts() == {"gelu": 1, "layer_norm": 1}
    # The first compilation, one with an option, one without patterns.
    assert counters["fusewheel"] == {"gelu": 2, "layer_norm": 2}
    # The table names every pattern.
    page = (ROOT / "docs" / "compiler.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`.+?) \|", page.partition("## What is replaced")[2], re.MULTILINE)
    listed = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    assert {pattern.name for pattern in known_patterns()} <= listed
