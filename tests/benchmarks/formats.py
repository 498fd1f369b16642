"""Tokens of linear layers whose weight is in stored blocks, against the read bandwidth."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fusewheel
import torch
from benchmarks.goals import FP32, READ, format_goals, judged
from benchmarks.linear import PAUSE
from benchmarks.results import Cell
from benchmarks.tables import Column, Panels, Table, met, wrapped
from benchmarks.timing import measure, reader
from fusewheel.ops.linear._blocks import FORMATS
from torch import Tensor
from torch.nn import functional as F


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(threads=[2])
    parser.add_argument("--kinds", nargs="*", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--inputs", type=int, default=2048, help="in features")
    parser.add_argument("--outputs", type=int, default=8192, help="out features")
    parser.add_argument(
        "--megabytes", type=int, default=256, help="size of all copies of a weight together"
    )


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    total = options.megabytes * 10**6
    outputs, inputs = options.outputs, options.inputs
    for threads in options.threads:
        torch.set_num_threads(threads)
        floats = _copies(torch.randn(outputs, inputs), total)
        read = reader(total)
        for dtype, kind in itertools.product(options.dtypes, options.kinds):
            x = torch.randn(1, inputs, dtype=getattr(torch, dtype))
            copies = _copies(blocks_of(kind, outputs, inputs), total)
            calls = {
                READ: read,
                FP32: _calls(F.linear, x.float(), floats),
                kind: _calls(fusewheel.linear_blocks, x, copies, kind),
            }
            times = measure(calls, options.seconds, PAUSE)
            yield judge(kind, dtype, outputs, inputs, times, copies[0].nbytes / total)


def blocks_of(kind: str, outputs: int, inputs: int) -> Tensor:
    """A weight of random codes, with scales that are neither infinite nor denormal."""
    format = FORMATS[kind]
    sizes = outputs, inputs // format.weights, format.bytes
    return torch.randint(64, 120, sizes, dtype=torch.uint8)


def _copies(weight: Tensor, total: int) -> list[Tensor]:
    """The weight and as many clones as make up the bytes asked for."""
    return [weight] + [weight.clone() for _ in range(-(-total // weight.nbytes) - 1)]


def _calls(
    call: Callable[..., Tensor], x: Tensor, weights: Sequence[Tensor], *rest: Any
) -> Callable[[], Tensor]:
    turns = itertools.cycle(weights)
    return torch.no_grad()(lambda: call(x, next(turns), *rest))


def judge(
    kind: str, dtype: str, outputs: int, inputs: int, times: dict[str, float], part: float
) -> Cell:
    """`part`: how much of the bytes of READ the weight has."""
    own, roof = times[kind], times[READ] * part
    goals = format_goals(kind)
    return Cell(
        name=kind,
        case=f"1x{inputs}x{outputs}",
        dtype=dtype,
        threads=torch.get_num_threads(),
        direction="fwd",
        seconds=own,
        baselines={FP32: times[FP32]},
        roof=roof,
        flops=2 * inputs * outputs,
        goals=judged(goals, {READ: roof / own}),
    )


def panels(measured: Sequence[Cell]) -> Panels:
    """Speed relative to float32."""
    found: Panels = {}
    for cell in measured:
        series = found.setdefault(f"{cell.case} against {FP32}", {})
        series.setdefault(cell.name, {})[cell.dtype] = cell.ratio(FP32)
    return found


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        "Medians of interleaved calls in one process: one row of x times a weight in stored "
        "blocks. `case`: rows x in features x out features. Each call takes the next of several "
        f"copies of the weight, together {options.megabytes} MB or more, so that it comes from "
        "memory. `Gw/s`: thousand million weights a second. `x fp32`: how many times as fast as "
        "`F.linear` with a float32 weight. `of read`: the bytes of the weight per second, relative "
        f"to the read bandwidth of `torch.dot` over {options.megabytes} MB, timed in turn."
    )


TABLE = Table(
    title="One row and a weight in stored blocks",
    columns=(
        Column("kind", -7, lambda cell: cell.name),
        Column("case", -12, lambda cell: cell.case),
        Column("x", -8, lambda cell: cell.dtype),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("ms", 7, lambda cell: f"{cell.seconds * 1e3:.3f}"),
        Column("Gw/s", 6, lambda cell: f"{cell.flops / 2 / cell.seconds / 1e9:.1f}"),
        Column("x fp32", 6, lambda cell: f"{cell.ratio(FP32):.2f}"),
        Column("of read", 7, lambda cell: f"{cell.of_roof:.0%}"),
        Column(
            "goals",
            -1,
            lambda cell: ", ".join(
                f"{goal} {'met' if met else 'missed'}" for goal, met in cell.goals.items()
            ),
        ),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
