"""Reads what the executor runs: its function's lines, with equal results beside eager's."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import torch
from fusewheel.compiler.run import execute
from torch import Tensor


def steps(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> list[str]:
    """The lines of the function that is run, without the user's lines; results are compared."""
    sources: list[str] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        made = execute(gm)
        found = traceback.linecache.getlines(made.__code__.co_filename)
        sources.extend(line.rpartition("  # ")[0].strip() or line.strip() for line in found[1:])
        return made

    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    own, other = (
        [
            i.detach().clone().requires_grad_(i.requires_grad) if isinstance(i, Tensor) else i
            for i in inputs
        ]
        for _ in range(2)
    )
    torch.testing.assert_close(compiled(*own), function(*other))
    torch.testing.assert_close(own, other)
    return sources


def count(lines: list[str], what: str) -> int:
    """How many lines call it."""
    return sum(re.search(rf"\b{what}_*\(", line) is not None for line in lines)
