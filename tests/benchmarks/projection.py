"""linear_cross_entropy against its three bare matrix products, and its peak memory.

The products are those no way around: logits, and the gradients of x and of the weight.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fusewheel
import torch
from benchmarks.goals import EAGER, MEMORY, PRODUCTS, judged, projection_goals
from benchmarks.results import Cell
from benchmarks.tables import Column, Panels, Table, met, missed, wrapped
from benchmarks.timing import measure
from fusewheel._core.memory import peak_bytes, reset_peak
from torch import Tensor
from torch.nn import functional as F

NAME = "linear_cross_entropy"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument(
        "--shapes",
        nargs="*",
        type=_shape,
        default=[(2048, 576, 49152), (4096, 512, 32000)],
        metavar="NxDxC",
        help="rows x features x classes",
    )


def _shape(text: str) -> tuple[int, int, int]:
    rows, features, classes = map(int, text.split("x"))
    return rows, features, classes


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for threads in options.threads:
        torch.set_num_threads(threads)
        for dtype in options.dtypes:
            for shape in options.shapes:
                yield _cell(shape, dtype, options.seconds)


def _cell(shape: tuple[int, int, int], dtype: str, seconds: float) -> Cell:
    rows, features, classes = shape
    x = torch.randn(rows, features).to(getattr(torch, dtype)).requires_grad_()
    weight = (torch.randn(classes, features) / features**0.5).to(x.dtype).requires_grad_()
    target = torch.randint(classes, (rows,))
    losses: dict[str, Callable[[], Tensor]] = {
        NAME: lambda: fusewheel.linear_cross_entropy(x, weight, target),
        EAGER: lambda: F.cross_entropy(F.linear(x, weight), target),
    }
    steps = {name: _step(loss, x, weight) for name, loss in losses.items()}
    peaks = {name: _peak(step) for name, step in steps.items()}
    times = measure(steps | {PRODUCTS: _products(x, weight)}, seconds)
    own = times.pop(NAME)
    reached = {name: time / own for name, time in times.items()}
    if all(peaks.values()):
        reached[MEMORY] = peaks[EAGER] / peaks[NAME]
    goals = {b: goal for b, goal in projection_goals().items() if b in reached}
    return Cell(
        name=NAME,
        case="x".join(map(str, shape)),
        dtype=dtype,
        threads=torch.get_num_threads(),
        direction="fwd+bwd",
        seconds=own,
        baselines=times,
        roof=times[PRODUCTS],
        flops=6 * rows * features * classes,
        goals=judged(goals, reached),
        peaks=peaks,
    )


def _step(loss: Callable[[], Tensor], *leaves: Tensor) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(loss(), leaves)


def _products(x: Tensor, weight: Tensor) -> Callable[[], Any]:
    x, weight = x.detach(), weight.detach()
    logits = x.new_empty(x.shape[0], weight.shape[0])
    grad = torch.randn_like(logits)
    grad_x, grad_weight = torch.empty_like(x), torch.empty_like(weight)

    def products() -> None:
        torch.mm(x, weight.t(), out=logits)
        torch.mm(grad, weight, out=grad_x)
        torch.mm(grad.t(), x, out=grad_weight)

    return products


def _peak(step: Callable[[], Any]) -> int:
    """Bytes a step needs on top of what is there; 0 where the system does not tell."""
    step()
    if not reset_peak():
        return 0
    before = peak_bytes()
    step()
    return peak_bytes() - before


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each dtype and number of threads."""
    found: Panels = {}
    for cell in measured:
        panel = found.setdefault(f"{cell.dtype}, threads: {cell.threads}", {})
        panel[cell.case] = {f"against {b}": cell.ratio(b) for b in cell.baselines}
    return found


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        "The loss and the gradients of x and weight; medians of interleaved calls in one process. "
        "`case`: rows x features x classes. `x eager`: how many times as fast as PyTorch's "
        "`cross_entropy` of `linear`. `x products`: how many times as fast as the three matrix "
        "products alone, written into memory that is allocated already. `memory`: the peak memory "
        "of a step beyond its inputs, and its share of eager's. `missed`: the goals that the case "
        "misses."
    )


def _memory(cell: Cell) -> str:
    own, eager = cell.peaks[NAME], cell.peaks[EAGER]
    return f"{own / 2**20:.0f} MiB, {own / eager:.1%}" if eager else "unknown"


TABLE = Table(
    title="Projection and cross entropy",
    columns=(
        Column("case", -15, lambda cell: cell.case),
        Column("dtype", -8, lambda cell: cell.dtype),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("ms", 9, lambda cell: f"{cell.seconds * 1e3:.1f}"),
        Column("x eager", 7, lambda cell: f"{cell.ratio(EAGER):.2f}"),
        Column("x products", 10, lambda cell: f"{cell.ratio(PRODUCTS):.2f}"),
        Column("memory", 16, _memory),
        Column("missed", -1, missed),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
