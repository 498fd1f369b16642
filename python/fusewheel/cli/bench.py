"""`fusewheel bench`: operators beside PyTorch's, on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fusewheel._core.progress import progress
from fusewheel._core.report import BaseReport
from fusewheel._core.show import ratio_colour, show
from fusewheel.cli.complete import items, timed_names

if TYPE_CHECKING:
    from fusewheel.dispatch.operator import Operator

DTYPES = ("float32", "bfloat16", "float16")
LEAST = 5
"""The smallest number of calls of each function."""


@dataclass(frozen=True)
class Timing:
    """An operator at one size.

    Attributes:
        operator: its name.
        case: the size.
        dtype: of its tensors.
        eager: median seconds of the same in PyTorch's operators.
        fusewheel: median seconds of the operator.
        ratio: `eager / fusewheel`, more is better.
    """

    operator: str
    case: str
    dtype: str
    eager: float
    fusewheel: float
    ratio: float


@dataclass(frozen=True)
class Timings(BaseReport):
    """Forward calls beside eager PyTorch.

    Attributes:
        machine: facts on which the figures depend.
        timings: in the order in which they were measured.
    """

    machine: dict[str, Any]
    timings: tuple[Timing, ...]

    def __str__(self) -> str:
        heading = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        lines = [heading, ""]
        width = max((len(f"{t.operator} {t.case}") for t in self.timings), default=0)
        lines.append(f"{'operator':{width}}  {'dtype':8}  {'eager ms':>10}  {'ours ms':>10}  ratio")
        for t in self.timings:
            lines.append(
                f"{f'{t.operator} {t.case}':{width}}  {t.dtype:8}  {t.eager * 1e3:10.3f}  "
                f"{t.fusewheel * 1e3:10.3f}  {t.ratio:5.2f}"
            )
        return "\n".join(lines)


COLOURS = {r"(?<=  )[\d.]+$": ratio_colour}
"""Of the ratio, which ends a line."""


def measure(first: Callable[[], Any], second: Callable[[], Any], seconds: float) -> list[float]:
    """The median seconds of two functions, which run in turn for so long together."""
    taken: tuple[list[float], list[float]] = ([], [])
    for function in (first, second):
        function()
    end = time.perf_counter() + seconds
    while len(taken[1]) < LEAST or time.perf_counter() < end:
        for function, found in zip((first, second), taken, strict=True):
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in taken]


def _cases(
    chosen: list[Operator], dtype: str
) -> Iterator[tuple[str, str, Callable[[], Any], Callable[[], Any]]]:
    import torch

    from fusewheel.dispatch.operator import Make

    for operator in chosen:
        assert operator.benchmarks is not None
        case, given = next(iter(operator.benchmarks(Make(getattr(torch, dtype)))))
        own: Callable[..., Any] = operator.overload
        other: Callable[..., Any] = operator.reference
        if operator.rival is not None and operator.function is not None:
            own, other = operator.function, operator.rival
        yield operator.name, case, _call(other, given), _call(own, given)


def _call(function: Callable[..., Any], given: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function(*given)


@click.command(short_help="Time operators beside eager PyTorch.")
@click.argument(
    "names",
    nargs=-1,
    metavar="[OPERATOR]...",
    shell_complete=lambda ctx, param, incomplete: items(timed_names(), incomplete),
)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--threads", type=click.IntRange(1), help="PyTorch's threads (default: its own).")
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Seconds for each operator.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(
    names: tuple[str, ...], dtype: str, threads: int | None, seconds: float, as_json: bool
) -> None:
    """Time operators beside eager PyTorch, forward, each at the first of its sizes.

    Without a name it times all that have a size to time. The repository's own benchmark,
    `nox -s bench`, has more sizes, gradients, Inductor and charts.
    """
    import torch

    import fusewheel
    from fusewheel.demo.machine import hardware

    known = {o.name: o for o in fusewheel.ops.operators() if o.benchmarks is not None}
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise click.BadParameter(
            f"no such operator: {', '.join(unknown)}; known: {', '.join(known)}"
        )
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = [known[name] for name in names] or list(known.values())
    found = []
    with torch.no_grad():
        cases = progress(
            _cases(chosen, dtype), total=len(chosen), describe=lambda case: f"{case[0]} {case[1]}"
        )
        for name, case, eager, own in cases:
            theirs, ours = measure(eager, own, seconds)
            found.append(Timing(name, case, dtype, theirs, ours, theirs / ours))
    report = Timings(hardware(), tuple(found))
    show(report, as_json, COLOURS)
