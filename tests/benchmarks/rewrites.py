"""What an operator saves inside of a graph, where a call is not one of Python's.

Each graph computes the same several times, on tensors of their own, once with the operator and once
with PyTorch's operations; both are compiled by the backend, with Inductor and without, so that
guards and everything else around them are the same.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import fusewheel
import torch
from benchmarks.goals import EAGER, INDUCTOR
from benchmarks.operators import panels, sides, trained
from benchmarks.results import Cell
from benchmarks.tables import Column, Table, wrapped
from benchmarks.timing import measure
from fusewheel.compiler.match.registry import known_patterns
from fusewheel.dispatch.operator import Arguments, Make, Operator
from torch import Tensor

COPIES = 8
_graphs = itertools.count()
# Beyond that what surrounds an operator takes no part of its time: see the table of operators.
MOST = 1 << 17
# The operator without Inductor, next to the same in eager mode.
EXECUTED = "operator"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operators", nargs="*", default=[], help="names (default: all patterns')")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    patterns = known_patterns()
    emitted = {pattern.operator.partition("::")[2] for pattern in patterns}
    declared = {o.name: o for o in fusewheel.ops.operators() if o.name in emitted and o.benchmarks}
    unknown = set(options.operators) - set(declared)
    if unknown:
        raise SystemExit(f"no such operator: {sorted(unknown)}; there are {sorted(declared)}")
    # Nothing but what is asked for becomes an operator.
    with fusewheel.compiler.disable(*(pattern.name for pattern in patterns)):
        for threads in options.threads:
            torch.set_num_threads(threads)
            for name in options.operators or declared:
                for dtype in options.dtypes:
                    yield from _of_operator(declared[name], dtype, options.seconds)


def _of_operator(operator: Operator, dtype: str, seconds: float) -> Iterator[Cell]:
    make = Make(getattr(torch, dtype), requires_grad=True)
    assert operator.benchmarks is not None
    for case, arguments in operator.benchmarks(make):
        if max(a.numel() for a in arguments if isinstance(a, Tensor)) > MOST:
            continue
        copies = [tuple(map(_copied, arguments)) for _ in range(COPIES)]
        torch.compiler.reset()
        for backward in (False, True):
            times = measure(_competitors(operator, copies, backward), seconds)
            yield Cell(
                name=operator.name,
                case=case,
                dtype=dtype,
                threads=torch.get_num_threads(),
                direction="fwd+bwd" if backward else "fwd",
                seconds=times.pop(operator.name) / COPIES,
                baselines={name: time / COPIES for name, time in times.items()},
                roof=0.0,
            )


def _copied(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    return argument.detach().clone().requires_grad_(argument.requires_grad)


def _competitors(
    operator: Operator, copies: list[Arguments], backward: bool
) -> dict[str, Callable[[], Any]]:
    own, other = sides(operator)
    return {
        name: _runner(_compiled(function, inner), operator, copies, backward)
        for name, inner, function in (
            (operator.name, "inductor", own),
            (INDUCTOR, "inductor", other),
            (EXECUTED, "none", own),
            (EAGER, "none", other),
        )
    }


def _compiled(function: Callable[..., Any], inner: str) -> Callable[..., Any]:
    def repeated(copies: list[Arguments]) -> list[Any]:
        return [function(*arguments) for arguments in copies]

    # Dynamo keeps its cache on the code object.
    repeated.__code__ = repeated.__code__.replace(co_name=f"graph_{next(_graphs)}")
    return torch.compile(repeated, backend="fusewheel", options={"inner": inner}, dynamic=False)


def _runner(
    function: Callable[..., Any], operator: Operator, copies: list[Arguments], backward: bool
) -> Callable[[], Any]:
    if not backward:
        inputs = [tuple(a.detach() if isinstance(a, Tensor) else a for a in c) for c in copies]
        return torch.no_grad()(lambda: function(inputs))
    leaves = [a for c in copies for a in c if isinstance(a, Tensor) and a.requires_grad]

    def outputs() -> list[Tensor]:
        return [output for result in function(copies) for output in trained(operator, result)]

    seeds = [torch.randn_like(o) for o in outputs()]
    return lambda: torch.autograd.grad(outputs(), leaves, seeds)


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        "Microseconds for one operator in a graph that has several of it; medians of interleaved "
        "calls in one process. `fused`: the fused operators, run one by one. `PyTorch`: PyTorch's "
        "operations in their place, run one by one. `fused, Ind.` and `Inductor`: the same two "
        "graphs, compiled by Inductor."
    )


def _us(key: str | None = None) -> Callable[[Cell], str]:
    return lambda c: f"{(c.seconds if key is None else c.baselines[key]) * 1e6:.1f}"


TABLE = Table(
    title="Operators within graphs",
    columns=(
        Column("operator", -14, lambda cell: cell.name),
        Column("case", -16, lambda cell: cell.case),
        Column("dtype", -8, lambda cell: cell.dtype),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("pass", -7, lambda cell: cell.direction),
        Column("fused", 8, _us(EXECUTED)),
        Column("PyTorch", 8, _us(EAGER)),
        Column("fused, Ind.", 11, _us()),
        Column("Inductor", 8, _us(INDUCTOR)),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=lambda measured: [],
    panels=panels,
)
