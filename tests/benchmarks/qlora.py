"""Fine-tuning of adapters on NF4 weights beside bitsandbytes, with peft for both."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from benchmarks.goals import BNB, judged, qlora_goals
from benchmarks.qlora_models import (
    BITSANDBYTES,
    MODES,
    RANK,
    SHAPE,
    adapted,
    has_bitsandbytes,
    step,
    token,
)
from benchmarks.results import Cell
from benchmarks.tables import Column, Panels, Table, met, wrapped
from benchmarks.timing import measure
from torch import Tensor

BATCH, TOKENS = 4, 128
CASES: dict[str, Callable[[Any, Tensor], Callable[[], Tensor]]] = {"step": step, "token": token}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    shape = SHAPE | {"num_hidden_layers": options.layers}
    for threads in options.threads:
        torch.set_num_threads(threads)
        for dtype in options.dtypes:
            for case in options.cases:
                torch.compiler.reset()
                calls = competitors(case, shape, getattr(torch, dtype), options.modes)
                yield from judge(case, dtype, measure(calls, options.seconds))


def batch(vocabulary: int) -> Tensor:
    """Token ids."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (BATCH, TOKENS), generator=generator)


def competitors(
    case: str, shape: dict[str, Any], dtype: torch.dtype, modes: Sequence[str]
) -> dict[str, Callable[[], Tensor]]:
    """The modes that can run here. Each case has models of its own: bitsandbytes stores a weight
    in another way once it was used without gradients.
    """
    ids = batch(shape["vocab_size"])
    can = [mode for mode in modes if mode != BITSANDBYTES or has_bitsandbytes()]
    return {mode: CASES[case](adapted(mode, shape, dtype), ids) for mode in can}


def judge(case: str, dtype: str, times: dict[str, float]) -> Iterator[Cell]:
    """A cell of each mode."""
    for mode, own in times.items():
        baselines = {BNB: times[BITSANDBYTES]} if BITSANDBYTES in times else {}
        reached = {name: seconds / own for name, seconds in baselines.items()}
        wanted = {} if mode == BITSANDBYTES else qlora_goals(case)
        goals = {name: least for name, least in wanted.items() if name in reached}
        yield Cell(
            name=mode,
            case=case,
            dtype=dtype,
            threads=torch.get_num_threads(),
            direction="fwd+bwd" if case == "step" else "fwd",
            seconds=own,
            baselines=baselines,
            roof=0.0,
            goals=judged(goals, reached),
        )


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each case."""
    found: Panels = {}
    for cell in measured:
        if cell.name != BITSANDBYTES and BNB in cell.baselines:
            series = found.setdefault(cell.case, {}).setdefault(cell.dtype, {})
            series[f"{cell.name} against {BNB}"] = cell.ratio(BNB)
    return found


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        f"A model of the shape of SmolLM2-135M with {options.layers} layers and random weights in "
        f"NF4, and peft's LoRA of rank {RANK} on all linear layers but the last; medians of "
        f"interleaved calls in one process. `step`: forward, backward and AdamW, {BATCH} x "
        f"{TOKENS} tokens. `token`: one token without gradients. `compiled`: "
        '`model.compile(backend="fusewheel")`. Goals for a step: 2x bitsandbytes, 5x without '
        "AVX-512."
    )


def _ratio(cell: Cell) -> str:
    return f"{cell.ratio(BNB):.2f}" if BNB in cell.baselines else "-"


def _goals(cell: Cell) -> str:
    return ", ".join(f"{goal} {'met' if ok else 'missed'}" for goal, ok in cell.goals.items())


TABLE = Table(
    title="Fine-tuning with NF4 weights",
    columns=(
        Column("case", -6, lambda cell: cell.case),
        Column("dtype", -8, lambda cell: cell.dtype),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("mode", -12, lambda cell: cell.name),
        Column("ms", 8, lambda cell: f"{cell.seconds * 1e3:.1f}"),
        Column("x bnb", 6, _ratio),
        Column("goals", -1, _goals),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
