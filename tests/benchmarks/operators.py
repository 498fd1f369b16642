"""Every declared operator against eager PyTorch, Inductor and the speed of copying memory.

The copy roof is the time `copy_` into a warm buffer needs for the bytes the operator must move;
100 % of it means nothing but traffic is left.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import fusewheel
import torch
from benchmarks.goals import (
    EAGER,
    FASTER,
    INDUCTOR,
    MEAN_GOALS,
    ROOF,
    judged,
    operator_goals,
)
from benchmarks.results import Cell, mean_ratio
from benchmarks.tables import Column, Panels, Table, met, missed, wrapped
from benchmarks.timing import copy_seconds_per_byte, measure
from fusewheel.dispatch.operator import Arguments, Make, Operator
from torch import Tensor

BASELINES = (EAGER, INDUCTOR)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operators", nargs="*", default=[], help="names (default: all)")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    declared = {o.name: o for o in fusewheel.ops.operators() if o.benchmarks is not None}
    unknown = set(options.operators) - set(declared)
    if unknown:
        raise SystemExit(f"no such operator: {sorted(unknown)}; there are {sorted(declared)}")
    for threads in options.threads:
        torch.set_num_threads(threads)
        roof = copy_seconds_per_byte()
        for name in options.operators or declared:
            for dtype in options.dtypes:
                yield from _of_operator(declared[name], dtype, roof, options.seconds)


def _of_operator(operator: Operator, dtype: str, roof: float, seconds: float) -> Iterator[Cell]:
    make = Make(getattr(torch, dtype), requires_grad=True)
    assert operator.benchmarks is not None
    for case, arguments in operator.benchmarks(make):
        torch.compiler.reset()
        own, other = sides(operator)
        functions: dict[str, Callable[..., Any]] = {
            "fusewheel": own,
            EAGER: other,
            INDUCTOR: torch.compile(other, dynamic=False),
        }
        for backward in (False, True):
            times = measure(
                {k: runner(f, operator, arguments, backward) for k, f in functions.items()}, seconds
            )
            direction = "fwd+bwd" if backward else "fwd"
            taken = times.pop("fusewheel")
            memory = traffic(operator, arguments, backward) * roof
            reached = {name: time / taken for name, time in times.items()}
            reached |= {FASTER: min(reached.values()), ROOF: memory / taken}
            yield Cell(
                name=operator.name,
                case=case,
                dtype=dtype,
                threads=torch.get_num_threads(),
                direction=direction,
                seconds=taken,
                baselines=times,
                roof=memory,
                goals=judged(operator_goals(operator.name, case, direction), reached),
            )


def runner(
    function: Callable[..., Any], operator: Operator, arguments: Arguments, backward: bool
) -> Callable[[], Any]:
    if not backward:
        inputs = tuple(a.detach() if isinstance(a, Tensor) else a for a in arguments)

        def forward() -> Any:
            with torch.no_grad():
                return function(*inputs)

        return forward
    leaves = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]

    def outputs() -> list[Tensor]:
        return trained(operator, function(*arguments))

    seeds = [torch.randn_like(o) for o in outputs()]
    return lambda: torch.autograd.grad(outputs(), leaves, seeds)


def sides(operator: Operator) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The operator, and what computes the same with PyTorch's own."""
    if operator.rival is None:
        return operator.overload, operator.reference
    assert operator.function is not None
    return operator.function, operator.rival


def trained(operator: Operator, result: Any) -> list[Tensor]:
    """The outputs without auxiliary ones (rstd, logsumexp), whose gradients few trainings have.

    Those are kept for the backward. So may the first one be, which is the result itself.
    """
    everything = result if isinstance(result, tuple) else (result,)
    if operator.rival is not None:
        return list(everything)
    schema = operator.overload._schema
    trainable = operator.saves if isinstance(operator.saves, Mapping) else None
    needs = [trainable is None or a.name in trainable for a in schema.arguments]
    hidden = operator.saved(needs)
    named = zip(everything, schema.returns, strict=True)
    return [o for i, (o, r) in enumerate(named) if i == 0 or r.name not in hidden]


def traffic(operator: Operator, arguments: Arguments, backward: bool) -> int:
    """Bytes that must move: inputs read and outputs written once; backward likewise."""
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    result = operator.rival(*arguments) if operator.rival else operator.fake(*arguments)
    outputs = result if isinstance(result, tuple) else (result,)
    read, written = (sum(t.numel() * t.element_size() for t in ts) for ts in (tensors, outputs))
    gradients = sum(t.numel() * t.element_size() for t in tensors if t.requires_grad)
    return read + written + ((written + read + gradients) if backward else 0)


def summary(measured: Sequence[Cell]) -> list[str]:
    return [
        f"geometric mean against {name}: {mean_ratio(measured, name):.2f}x (goal: {goal:g}x)"
        for name, goal in MEAN_GOALS.items()
    ] + met(measured)


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each dtype, direction and number of threads; a mean over the sizes."""
    found: dict[str, dict[str, list[Cell]]] = {}
    for cell in measured:
        panel = f"{cell.dtype}, {cell.direction}, threads: {cell.threads}"
        found.setdefault(panel, {}).setdefault(cell.name, []).append(cell)
    return {
        panel: {
            name: {f"against {b}": mean_ratio(several, b) for b in BASELINES}
            for name, several in group.items()
        }
        for panel, group in found.items()
    }


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        "Medians of interleaved calls in one process. `x eager` and `x Induct.`: how many times as "
        "fast as eager PyTorch and as Inductor. `of roof`: the time PyTorch's `copy_` takes to "
        "move as many bytes as the operator has to, divided by the time of the operator. At 100 % "
        "the operator takes as long as its memory traffic; above 100 % its data was in a cache. "
        "`missed`: the goals that the case misses."
    )


TABLE = Table(
    title="Operators",
    columns=(
        Column("operator", -13, lambda cell: cell.name),
        Column("case", -16, lambda cell: cell.case),
        Column("dtype", -8, lambda cell: cell.dtype),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("pass", -7, lambda cell: cell.direction),
        Column("ms", 9, lambda cell: f"{cell.seconds * 1e3:.3f}"),
        Column("x eager", 8, lambda cell: f"{cell.ratio(EAGER):.2f}"),
        Column("x Induct.", 9, lambda cell: f"{cell.ratio(INDUCTOR):.2f}"),
        Column("of roof", 7, lambda cell: f"{cell.of_roof:.0%}"),
        Column("missed", -1, missed),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=summary,
    panels=panels,
)
