"""Small models in TorchScript: PyTorch's ways of running them and ours, inference alone."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from benchmarks.goals import EAGER, judged, script_goals
from benchmarks.results import Cell
from benchmarks.tables import Column, Panels, Table, met, missed, wrapped
from benchmarks.timing import measure
from benchmarks.torchscript_models import MODELS, Inputs
from fusewheel import jit
from torch import nn

FROZEN, INFERENCE, OPTIMIZED, STATIC = "frozen", "for inf.", "optimize", "static"
# Which the row of a model is about; the goal is that of the better one.
OWN = (OPTIMIZED, STATIC)
MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--modes", nargs="*", choices=list(MODES), default=list(MODES))


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name in options.models:
            torch.manual_seed(0)
            model, inputs = MODELS[name]()
            with torch.no_grad():
                runs = competitors(model.eval(), inputs)
            for mode in options.modes:
                yield _cell(name, runs, inputs, mode, options.seconds)


def competitors(model: nn.Module, inputs: Inputs) -> dict[str, Callable[..., Any]]:
    """Every way of running a model, by its name in the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.script(model)
        return {
            EAGER: model,
            FROZEN: torch.jit.freeze(script),
            INFERENCE: torch.jit.optimize_for_inference(torch.jit.script(model)),
            OPTIMIZED: jit.optimize(script, inputs),
            STATIC: jit.optimize(script, inputs, runtime="static"),
        }


def _cell(
    name: str, runs: dict[str, Callable[..., Any]], inputs: Inputs, mode: str, seconds: float
) -> Cell:
    with MODES[mode]():
        times = measure({key: _call(run, inputs) for key, run in runs.items()}, seconds)
    own = min(times[key] for key in OWN)
    return Cell(
        name=name,
        case=mode,
        dtype="float32",
        threads=torch.get_num_threads(),
        direction="fwd",
        seconds=own,
        baselines=times,
        roof=0.0,
        goals=judged(script_goals(), {EAGER: times[EAGER] / own}),
    )


def _call(run: Callable[..., Any], inputs: Inputs) -> Callable[[], Any]:
    return lambda: run(*inputs)


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each mode and number of threads."""
    found: Panels = {}
    for cell in measured:
        panel = found.setdefault(f"{cell.case}, threads: {cell.threads}", {})
        others = [key for key in cell.baselines if key != EAGER]
        panel[cell.name] = {key: cell.baselines[EAGER] / cell.baselines[key] for key in others}
    return found


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        "Inference with small models of random float32 weights (`tests/benchmarks/"
        "torchscript_models.py`); medians of interleaved calls in one process. `eager us`: "
        "microseconds of the module as it is. The other columns: how many times as fast as that. "
        "`frozen`: `torch.jit.freeze` of the scripted module. `for inf.`: "
        "`torch.jit.optimize_for_inference`. `optimize`: `fusewheel.jit.optimize`. `static`: the "
        'same with `runtime="static"`. `missed`: the goal that neither of these two reaches.'
    )


def _ratio(key: str) -> Callable[[Cell], str]:
    return lambda cell: f"{cell.baselines[EAGER] / cell.baselines[key]:.2f}"


TABLE = Table(
    title="Small models in TorchScript",
    columns=(
        Column("model", -13, lambda cell: cell.name),
        Column("mode", -14, lambda cell: cell.case),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("eager us", 8, lambda cell: f"{cell.baselines[EAGER] * 1e6:.0f}"),
        *(Column(key, len(key), _ratio(key)) for key in (FROZEN, INFERENCE, *OWN)),
        Column("missed", -1, missed),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
