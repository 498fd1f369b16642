"""What docs/compiler.md shows is run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from fusewheel.compiler import unregister

Tensor = torch.Tensor
PAGE = Path(__file__).parents[2] / "docs" / "compiler.md"


def _example(word: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return str(found)


def test_a_pattern_of_ones_own(compare: Any) -> None:
    exec(compile(_example("PATTERN ="), str(PAGE), "exec"), {"__name__": "example"})
    try:
        report = compare(lambda x: torch.tanh(x / 5.0) * 5.0 + x.tanh(), torch.randn(3, 4))
        assert report.counts() == {"softcap": 1} and not report.refusals
        report = compare(lambda x: torch.tanh(x / 5.0) * 6.0, torch.randn(3, 4))
        assert "not multiplied by what" in report.refusals[0].reason
    finally:
        unregister("softcap")


def test_switching_off() -> None:
    exec(compile(_example("disable("), str(PAGE), "exec"), {})
