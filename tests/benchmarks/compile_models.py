"""Language models compiled in every way, in turns: time, memory, and what compiling takes.

Each way has a process of its own; those of one model, dtype and number of threads live together
and take turns. What takes hopelessly long is bounded by two limits, and the table says where.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compile_way import Remote, Way
from benchmarks.compile_worker import (
    CASES,
    EAGER,
    INDUCTOR,
    INT4,
    INT4_INT8,
    MODES,
    OPERATORS,
    OVER_INDUCTOR,
    UNCOMPILED,
    Sizes,
    Spec,
)
from benchmarks.goals import (
    EAGER_PEAK,
    PEAK,
    eager_goals,
    judged,
    model_goals,
    quantized_goals,
)
from benchmarks.results import Cell
from benchmarks.tables import Column, Panels, Table, met, wrapped
from fusewheel._core.process import Child
from fusewheel.demo.measure import environment
from fusewheel.demo.settings import Settings

SIZES = Sizes()

# Without weights of its own: 0.3 billion random ones. The vocabulary is that of Llama 3.
LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 128256,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
MODELS: dict[str, dict[str, Any] | None] = {"SmolLM2-135M": None, "Llama-0.3B": LLAMA}


Start = Callable[[Spec, Path], Remote]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--modes", nargs="*", choices=list(MODES), default=list(MODES))
    parser.add_argument("--repeats", type=int, default=9, help="timed runs of each mode and case")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds of timed runs, per mode and case"
    )
    parser.add_argument(
        "--first-limit", type=float, default=900.0, help="seconds a first run may compile"
    )


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            bundle = _bundle(Path(folder)) if MODELS[model] is None else None
            for dtype in options.dtypes:
                for threads in options.threads:
                    specs = [
                        Spec(mode, dtype, threads, bundle, MODELS[model] or {}, SIZES)
                        for mode in options.modes
                        if any(MODES[mode].takes(case, dtype) for case in options.cases)
                    ]
                    # Empty caches, so that compile times are those of a first run.
                    caches = Path(tempfile.mkdtemp(dir=folder))
                    yield from measure(model, specs, options, _starter(options.isa), caches)


def measure(
    model: str, specs: Sequence[Spec], options: argparse.Namespace, start: Start, folder: Path
) -> Iterator[Cell]:
    """The cells of one model in one dtype with one number of threads."""
    all_ways = [Way(spec.mode, start(spec, folder)) for spec in specs]
    try:
        for case in options.cases:
            ways = [way for way in all_ways if MODES[way.mode].takes(case, specs[0].dtype)]
            if not ways:
                continue
            for way in ways:
                _say(f"{model}, {specs[0].dtype}, threads: {specs[0].threads}: {way.mode}, {case}")
                way.begin(case, options.first_limit)
            for repeat in range(options.repeats):
                # The order rotates, so that no mode always follows the same one.
                shift = repeat % len(ways)
                for way in ways[shift:] + ways[:shift]:
                    way.again(case, options.limit)
            yield from _cells(model, case, specs[0], ways, options.repeats)
    finally:
        for way in all_ways:
            if not way.note:
                way.remote.close()


def _cells(model: str, case: str, spec: Spec, ways: Sequence[Way], repeats: int) -> Iterator[Cell]:
    calls = spec.sizes.steps if case == "decode" else 1
    medians = {way.mode: way.median / calls for way in ways if way.median is not None}
    peaks = {way.mode: way.peak for way in ways if way.peak}
    baselines = {mode: medians[mode] for mode in (EAGER, INDUCTOR) if mode in medians}
    for way in ways:
        own = medians.get(way.mode, float("inf"))
        reached = {baseline: seconds / own for baseline, seconds in baselines.items()}
        for name, baseline in ((PEAK, INDUCTOR), (EAGER_PEAK, EAGER)):
            if baseline in peaks and way.mode in peaks:
                reached[name] = peaks[baseline] / peaks[way.mode]
        goals = _goals(way.mode, case, spec.dtype)
        compiling = way.first - own * calls if way.mode != EAGER and way.seconds else 0.0
        few = f"{len(way.seconds)} of {repeats} runs" if 0 < len(way.seconds) < repeats else ""
        yield Cell(
            name=way.mode,
            case=f"{model} {case}",
            dtype=spec.dtype,
            threads=spec.threads,
            direction="fwd+bwd" if case == "train" else "fwd",
            seconds=own,
            baselines=baselines,
            roof=0.0,
            goals=judged({b: goal for b, goal in goals.items() if b in reached}, reached),
            peaks=peaks,
            compiling=max(0.0, compiling),
            note=way.note or few,
        )


def _goals(mode: str, case: str, dtype: str) -> dict[str, float]:
    if mode in (EAGER, INDUCTOR):
        return {}
    if mode in (OPERATORS, UNCOMPILED):
        return eager_goals(case)
    return quantized_goals(case) if MODES[mode].quantizing else model_goals(case, dtype)


def _bundle(folder: Path) -> str:
    """The real weights, converted once."""
    from fusewheel.demo.models.weights import Preparer, check_dependencies

    if not (folder / "bundle.pt").exists():
        check_dependencies()
        _say("converting the weights")
        settings = Settings()
        factory = functools.partial(Preparer, str(folder), None, False)
        with Child(factory, environment=environment(settings, folder, "prepare", "fp32")) as child:
            child.call("prepare")
    return str(folder)


def _starter(level: str | None) -> Start:
    def start(spec: Spec, folder: Path) -> Remote:
        settings = Settings(threads=spec.threads, isa=level)
        name = spec.mode.replace(" ", "-")
        return Child(spec.open, environment=environment(settings, folder, name, spec.dtype))

    return start


def _say(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each dtype and number of threads."""
    found: Panels = {}
    for cell in measured:
        panel = found.setdefault(f"{cell.dtype}, threads: {cell.threads}", {})
        if not cell.is_baseline and cell.seconds < float("inf"):
            series = {f"{cell.name} against {b}": cell.ratio(b) for b in cell.baselines}
            panel.setdefault(cell.case, {}).update(series)
    return found


def notes(options: argparse.Namespace) -> str:
    rows, length = SIZES.batch
    return wrapped(
        "Each mode runs in a process of its own; the modes take turns, and the figures are "
        f"medians. `prefill`: a prompt of {SIZES.prompt} tokens with a static cache. `decode`: one "
        f"token, of {SIZES.steps} in a row. `train`: forward, backward and SGD on {rows} x "
        f"{length} tokens; the compiled function returns the loss and not the logits. `fusewheel`: "
        "the backend without options, which generates no code for these models. "
        f'`{OVER_INDUCTOR}`: the backend with `options={{"inner": "inductor"}}`. '
        f'`{UNCOMPILED}`: the backend with `options={{"inner": "none"}}`. `{OPERATORS}`: eager, '
        f"the model itself calls fused norms, gates, rotations and cross entropy. `{INT4}`: "
        f"`fusewheel` with 4-bit weights in groups of 32. `{INT4_INT8}`: the same, with "
        "activations rounded to int8. Both are compared with eager and Inductor in float32. `MiB`: "
        "the peak resident memory of the process in a run, after compiling. `compile`: the seconds "
        f"by which the first run is longer than the median, with empty caches. Each mode is timed "
        f"{options.repeats} times in a case, or fewer times where that takes more than "
        f"{options.limit:g} s; a first run is stopped after {options.first_limit:g} s. The goals "
        "of 4x are for a CPU without AVX-512."
    )


def _ratio(cell: Cell, baseline: str) -> str:
    known = baseline in cell.baselines and cell.seconds < float("inf")
    return f"{cell.ratio(baseline):.2f}" if known else "-"


def _milliseconds(cell: Cell) -> str:
    return f"{cell.seconds * 1e3:.1f}" if cell.seconds < float("inf") else "-"


def _mebibytes(cell: Cell) -> str:
    return f"{cell.peaks[cell.name] / 2**20:.0f}" if cell.name in cell.peaks else "-"


def _remarks(cell: Cell) -> str:
    goals = [f"{goal} {'met' if reached else 'missed'}" for goal, reached in cell.goals.items()]
    return ", ".join([*goals, cell.note] if cell.note else goals)


TABLE = Table(
    title="Compiled language models",
    columns=(
        Column("model", -21, lambda cell: cell.case),
        Column("dtype", -8, lambda cell: cell.dtype),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("mode", -14, lambda cell: cell.name),
        Column("ms", 9, _milliseconds),
        Column("x eager", 7, lambda cell: _ratio(cell, EAGER)),
        Column("x Induct.", 9, lambda cell: _ratio(cell, INDUCTOR)),
        Column("MiB", 6, _mebibytes),
        Column("compile", 7, lambda cell: f"{cell.compiling:.1f}" if cell.compiling else "-"),
        Column("goals", -1, _remarks),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
