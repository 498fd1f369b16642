"""Sentence encoders, compiled and quantised, beside PyTorch and ONNX Runtime."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fusewheel
import torch
from benchmarks.encoder_models import SHAPES, Encoder, onnx_calls
from benchmarks.goals import EAGER, INDUCTOR, ORT_INT8, encoder_goals, judged
from benchmarks.results import Cell
from benchmarks.tables import Column, Panels, Table, met, wrapped
from benchmarks.timing import measure
from torch import Tensor, nn

BATCH, TOKENS, VOCABULARY = 8, 128, 30522
FUSEWHEEL, INT8, BF16 = "fusewheel", "int8", "bf16"
ORT_FP32 = "ort fp32"
MODES = (EAGER, INDUCTOR, FUSEWHEEL, BF16, INT8, ORT_FP32, ORT_INT8)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="*", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name in options.models:
            torch.compiler.reset()
            calls = competitors(SHAPES[name], batch(), threads, options.modes)
            yield from judge(name, measure(calls, options.seconds))


def batch() -> tuple[Tensor, Tensor]:
    """Token ids and mask of sentences that are as long as there is room."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (BATCH, TOKENS), generator=generator)
    return ids, torch.ones_like(ids)


def competitors(
    shape: dict[str, Any], inputs: tuple[Tensor, Tensor], threads: int, modes: Sequence[str]
) -> dict[str, Callable[[], Tensor]]:
    """The modes that can run here, on equal weights."""
    ways: dict[str, Callable[[], nn.Module]] = {
        EAGER: lambda: Encoder(shape),
        INDUCTOR: lambda: compiled(Encoder(shape), "inductor"),
        FUSEWHEEL: lambda: compiled(Encoder(shape), "fusewheel"),
        BF16: lambda: compiled(Encoder(shape).bfloat16(), "fusewheel"),
        INT8: lambda: compiled(quantized(Encoder(shape)), "fusewheel"),
    }
    calls = {mode: functools.partial(_run, ways[mode](), inputs) for mode in modes if mode in ways}
    if {ORT_FP32, ORT_INT8} & set(modes):
        found = onnx_calls(Encoder(shape), inputs, threads)
        calls |= {mode: call for mode, call in found.items() if mode in modes}
    return calls


def compiled(model: nn.Module, backend: str) -> nn.Module:
    model.compile(backend=backend, dynamic=False)
    return model


def quantized(model: nn.Module) -> nn.Module:
    fusewheel.quantize_(model, "int8", group_size=None, dynamic=True)
    return model


@torch.no_grad()
def _run(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    hidden: Tensor = model(*inputs)
    return hidden


def judge(model: str, times: dict[str, float]) -> Iterator[Cell]:
    """A cell of each mode."""
    baselines = {name: times[name] for name in (EAGER, INDUCTOR, ORT_INT8) if name in times}
    for mode, own in times.items():
        reached = {name: seconds / own for name, seconds in baselines.items()}
        goals = {name: least for name, least in encoder_goals(mode).items() if name in reached}
        yield Cell(
            name=mode,
            case=model,
            dtype="float32",
            threads=torch.get_num_threads(),
            direction="fwd",
            seconds=own,
            baselines=baselines,
            roof=0.0,
            goals=judged(goals, reached),
        )


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each number of threads."""
    found: Panels = {}
    for cell in measured:
        if not cell.is_baseline:
            panel = found.setdefault(f"threads: {cell.threads}", {})
            series = {f"{cell.name} against {b}": cell.ratio(b) for b in cell.baselines}
            panel.setdefault(cell.case, {}).update(series)
    return found


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        f"{BATCH} sentences of {TOKENS} tokens, BERT of the shape that is named, random weights; "
        "medians of interleaved calls in one process. `fusewheel` and `bf16`: "
        '`model.compile(backend="fusewheel")` in float32 and bfloat16. `int8`: the same in '
        'float32 after `fusewheel.quantize_(model, "int8", group_size=None, dynamic=True)`. '
        "`ort`: ONNX Runtime on the exported model, and after its own `quantize_dynamic`. Goals: "
        "float32 not below the faster of eager and Inductor, int8 at 1.2x ONNX Runtime's."
    )


def _ratio(baseline: str) -> Callable[[Cell], str]:
    return lambda cell: f"{cell.ratio(baseline):.2f}" if baseline in cell.baselines else "-"


def _goals(cell: Cell) -> str:
    return ", ".join(f"{goal} {'met' if ok else 'missed'}" for goal, ok in cell.goals.items())


TABLE = Table(
    title="Sentence encoders",
    columns=(
        Column("model", -10, lambda cell: cell.case),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("mode", -10, lambda cell: cell.name),
        Column("ms", 8, lambda cell: f"{cell.seconds * 1e3:.1f}"),
        Column("x eager", 7, _ratio(EAGER)),
        Column("x Induct.", 9, _ratio(INDUCTOR)),
        Column("x ort int8", 10, _ratio(ORT_INT8)),
        Column("goals", -1, _goals),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
