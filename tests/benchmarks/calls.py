"""What a call costs by itself: operators of 8 elements against PyTorch's of the same."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fusewheel
import torch
from benchmarks.goals import ADD, CALL, EAGER, call_goals, judged
from benchmarks.results import Cell
from benchmarks.tables import Column, Panels, Table, met, missed, wrapped
from benchmarks.timing import measure
from torch import Tensor
from torch.nn import functional as F

Call = Callable[[Tensor, Tensor], Tensor]

# fusewheel's and PyTorch's.
OPERATORS: dict[str, tuple[Call, Call]] = {
    "mul": (fusewheel.mul, torch.mul),
    "silu_mul": (fusewheel.silu_mul, lambda x, y: F.silu(x) * y),
    "gelu": (lambda x, _: fusewheel.gelu(x), lambda x, _: F.gelu(x)),
    "rms_norm": (
        lambda x, y: fusewheel.rms_norm(x, x.shape, y, 1e-6),
        lambda x, y: F.rms_norm(x, x.shape, y, 1e-6),
    ),
    "layer_norm": (
        lambda x, y: fusewheel.layer_norm(x, x.shape, y, y),
        lambda x, y: F.layer_norm(x, x.shape, y, y),
    ),
}


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name, (own, other) in OPERATORS.items():
            for mode in ("no gradient", "fwd", "fwd+bwd"):
                yield _cell(name, own, other, mode, options.seconds)


def _cell(name: str, own: Call, other: Call, mode: str, seconds: float) -> Cell:
    functions = {name: own, EAGER: other, ADD: torch.add}
    times = measure({key: _runner(f, mode) for key, f in functions.items()}, seconds)
    taken = times.pop(name)
    return Cell(
        name=name,
        case="8",
        dtype="float32",
        threads=torch.get_num_threads(),
        direction=mode,
        seconds=taken,
        baselines=times,
        roof=0.0,
        goals=judged(call_goals(mode), {CALL: 1e-6 / taken}),
    )


def _runner(function: Call, mode: str) -> Callable[[], Any]:
    x, y = (torch.randn(8, requires_grad=mode != "no gradient") for _ in range(2))
    if mode != "fwd+bwd":
        return lambda: function(x, y)
    seed = torch.ones(8)
    return lambda: torch.autograd.grad(function(x, y), (x, y), seed, allow_unused=True)


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each kind of call and number of threads."""
    found: Panels = {}
    for cell in measured:
        panel = found.setdefault(f"{cell.direction}, threads: {cell.threads}", {})
        panel[cell.name] = {f"against {EAGER}": cell.ratio(EAGER)}
    return found


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        "The public functions, called from Python with tensors of 8 elements; medians of "
        "interleaved calls in one process. `eager us`: PyTorch's functions that compute the same. "
        "`torch.add us`: `torch.add` of the same tensors in the same mode, as a measure of the "
        "machine. `fwd` records a gradient and does not compute it. The goals are for a machine "
        "where `torch.add` takes 1.7 us."
    )


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


TABLE = Table(
    title="Cost of a call",
    columns=(
        Column("operator", -11, lambda cell: cell.name),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("pass", -11, lambda cell: cell.direction),
        Column("us", 6, lambda cell: _microseconds(cell.seconds)),
        Column("eager us", 8, lambda cell: _microseconds(cell.baselines[EAGER])),
        Column("torch.add us", 12, lambda cell: _microseconds(cell.baselines[ADD])),
        Column("missed", -1, missed),
    ),
    notes=notes,
    add_options=lambda parser: None,
    cells=cells,
    summary=met,
    panels=panels,
)
