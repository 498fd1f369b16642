"""Runs made up for the tests of what is computed from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.results import Cell, Run

MACHINE: dict[str, Any] = {
    "cpu": "Imagined Processor",
    "capability": "AVX2",
    "threads": [2],
    "cores": 4,
    "torch": "2.13.0",
    "python": "3.11.7",
    "isa": None,
    "kernels": "v3",
    "caches": {"L2": "2048K"},
    "fusewheel": "0.1.0",
}

CELL = Cell(
    name="rms_norm",
    case="8x576",
    dtype="float32",
    threads=2,
    direction="fwd",
    seconds=2e-3,
    baselines={"eager": 8e-3, "inductor": 3e-3},
    roof=1e-3,
)


def run(*seconds: float, **machine: Any) -> Run:
    """Operators of these times, each with a case of its own."""
    cells = [replace(CELL, case=f"{i + 1}x576", seconds=s) for i, s in enumerate(seconds)]
    return Run("operators", MACHINE | machine, cells)
