"""Models that no pattern was written for: what is then compiled must not be slower for that."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from benchmarks.goals import EAGER, INDUCTOR, judged, unknown_goals
from benchmarks.results import DIRECTIONS, Cell
from benchmarks.tables import Column, Panels, Table, met, missed, wrapped
from benchmarks.timing import measure
from benchmarks.unknown_models import MODELS
from torch import Tensor, nn

FUSEWHEEL = "fusewheel"
COMPILERS: Mapping[str, Mapping[str, Any]] = {
    INDUCTOR: {"backend": "inductor"},
    FUSEWHEEL: {"backend": "fusewheel"},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--directions", nargs="*", choices=DIRECTIONS, default=list(DIRECTIONS))


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name in options.models:
            for direction in options.directions:
                torch.compiler.reset()
                torch.manual_seed(0)
                model, x = MODELS[name]()
                model.train(direction != "fwd")
                times = measure(competitors(model, x, direction), options.seconds)
                yield _cell(name, direction, times)


def competitors(model: nn.Module, x: Tensor, direction: str) -> dict[str, Callable[[], Any]]:
    """Every way of calling a model, by its name in the table."""
    ways = {EAGER: model} | {
        name: torch.compile(model, dynamic=False, **how) for name, how in COMPILERS.items()
    }
    call = _forward if direction == "fwd" else _both
    return {name: call(model, way, x) for name, way in ways.items()}


def _forward(_: nn.Module, way: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Any]:
    @torch.no_grad()
    def call() -> Tensor:
        return way(x)

    return call


def _both(model: nn.Module, way: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Any]:
    weights = list(model.parameters())

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(way(x).square().mean(), weights)

    return call


def _cell(name: str, direction: str, times: dict[str, float]) -> Cell:
    own = times[FUSEWHEEL]
    return Cell(
        name=name,
        case="",
        dtype="float32",
        threads=torch.get_num_threads(),
        direction=direction,
        seconds=own,
        baselines={baseline: times[baseline] for baseline in (EAGER, INDUCTOR)},
        roof=0.0,
        goals=judged(unknown_goals(), {INDUCTOR: times[INDUCTOR] / own}),
    )


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each direction and number of threads."""
    found: Panels = {}
    for cell in measured:
        panel = found.setdefault(f"{cell.direction}, threads: {cell.threads}", {})
        panel[cell.name] = {f"against {b}": cell.ratio(b) for b in cell.baselines}
    return found


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        "Models in which fusewheel replaces nothing (`tests/benchmarks/unknown_models.py`), with "
        'random float32 weights: `torch.compile(model, backend="fusewheel")` against eager and '
        "against Inductor alone; medians of interleaved calls in one process. `fwd+bwd`: with the "
        "gradients of all weights. Goal: at most 2 % slower than Inductor."
    )


def _ratio(baseline: str) -> Callable[[Cell], str]:
    return lambda cell: f"{cell.ratio(baseline):.2f}"


TABLE = Table(
    title="Unknown architectures",
    columns=(
        Column("model", -21, lambda cell: cell.name),
        Column("pass", -7, lambda cell: cell.direction),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("ms", 8, lambda cell: f"{cell.seconds * 1e3:.2f}"),
        Column("x eager", 7, _ratio(EAGER)),
        Column("x Induct.", 9, _ratio(INDUCTOR)),
        Column("missed", -1, missed),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
