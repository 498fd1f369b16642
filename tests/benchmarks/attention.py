"""Attention against PyTorch's, a bare matrix product and the speed of reading."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from benchmarks.attention_cases import COPIED, FLEX, KINDS, OWN, WINDOW, Case, cases_of
from benchmarks.goals import NEEDED, PRODUCT, READ, SDPA, attention_goals, judged
from benchmarks.results import DIRECTIONS, Cell
from benchmarks.tables import Column, Panels, Table, met, missed, wrapped
from benchmarks.timing import measure, reader
from fusewheel._core.memory import peak_bytes, reset_peak

_SIDE = 1024


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--lengths", nargs="*", type=int, default=[512, 1024, 2048, 4096])
    parser.add_argument("--directions", nargs="*", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument(
        "--no-flex", dest="flex", action="store_false", help="without flex_attention"
    )


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for threads in options.threads:
        torch.set_num_threads(threads)
        roofs = {PRODUCT: _product(), READ: reader(COPIED // 2)}
        for dtype in options.dtypes:
            for kind in options.kinds:
                for case in cases_of(
                    kind,
                    getattr(torch, dtype),
                    options.lengths,
                    options.flex,
                    options.directions,
                ):
                    times = measure(case.runs | roofs, options.seconds)
                    yield _cell(case, dtype, threads, times, _peaks(case))


def _product() -> Callable[[], Any]:
    square = torch.randn(_SIDE, _SIDE)
    target = torch.empty_like(square)
    return lambda: torch.mm(square, square, out=target)


def _cell(
    case: Case, dtype: str, threads: int, times: Mapping[str, float], peaks: dict[str, int]
) -> Cell:
    own = times[OWN]
    baselines = {
        name: min(times[run] for run in case.runs if run.startswith(name))
        for name in (SDPA, FLEX)
        if name in case.runs
    }
    # What the products take at the rate of a large one, and what the memory takes to be read.
    products = case.flops * times[PRODUCT] / (2 * _SIDE**3)
    roof = case.read * times[READ] / (COPIED // 2) if case.read else products
    reached = {name: time / own for name, time in baselines.items()}
    reached |= {READ if case.read else PRODUCT: roof / own}
    if peaks:
        reached[NEEDED] = peaks[NEEDED] / peaks[OWN]
    goals = attention_goals(case.kind, dtype, case.direction)
    return Cell(
        name="attention",
        case=case.title,
        dtype=dtype,
        threads=threads,
        direction=case.direction,
        seconds=own,
        baselines=baselines,
        roof=roof,
        flops=case.flops,
        goals=judged({b: goal for b, goal in goals.items() if b in reached}, reached),
        peaks=peaks,
    )


def _peaks(case: Case) -> dict[str, int]:
    """Bytes of a long case at their peak: the process's own and what a step needs."""
    if case.kind != "long":
        return {}
    run = case.runs[OWN]
    run()
    if not reset_peak():
        return {}
    before = peak_bytes()
    run()
    # The result has the size of q, and its gradient is there before, as the inputs are.
    inputs, result = sum(tensor.nbytes for tensor in case.inputs), case.inputs[0].nbytes
    step = peak_bytes() - before
    return {OWN: inputs + result + step, NEEDED: 2 * (inputs + result)}


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each dtype, direction and number of threads."""
    found: Panels = {}
    for cell in measured:
        panel = found.setdefault(f"{cell.dtype}, {cell.direction}, threads: {cell.threads}", {})
        panel[cell.case] = {f"against {b}": cell.ratio(b) for b in cell.baselines}
    return found


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        "Medians of interleaved calls in one process. `case`: batch x heads of q : heads of k and "
        f"v x length x head size, causal; `window`: a query sees {WINDOW} keys; `packed`: "
        "sequences one after the other, and for PyTorch padded to the longest; `decode`: one "
        "query, and caches that lie in memory; `token`: one query, as steps of a program, and "
        "caches that the processor's hold; `small` and `long`: causal too. "
        "`x SDPA`: how many times as fast as the faster of "
        "`scaled_dot_product_attention` with grouped heads and with repeated ones; `x flex`: as "
        "`flex_attention` compiled by Inductor, which has no backward on a CPU. `of roof`: for "
        "`decode` the speed of reading the caches relative to `torch.dot`, elsewhere the speed of "
        f"the products that are needed relative to a float32 product of {_SIDE} x {_SIDE}. "
        "`memory`: the peak of a step, relative to q, k, v, the result and their gradients."
    )


def _versus(name: str) -> Column:
    return Column(
        f"x {name}",
        6,
        lambda cell: f"{cell.ratio(name):.2f}" if name in cell.baselines else "",
    )


def _memory(cell: Cell) -> str:
    return f"{cell.peaks[OWN] / cell.peaks[NEEDED]:.2f}" if cell.peaks else ""


TABLE = Table(
    title="Attention",
    columns=(
        Column("case", -32, lambda cell: cell.case),
        Column("dtype", -8, lambda cell: cell.dtype),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("pass", -7, lambda cell: cell.direction),
        Column("ms", 9, lambda cell: f"{cell.seconds * 1e3:.3f}"),
        Column("GFLOP/s", 8, lambda cell: f"{cell.flops / cell.seconds / 1e9:.1f}"),
        _versus(SDPA),
        _versus(FLEX),
        Column("of roof", 7, lambda cell: f"{cell.of_roof:.0%}"),
        Column("memory", 6, _memory),
        Column("missed", -1, missed),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
