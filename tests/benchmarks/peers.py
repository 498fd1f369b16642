"""Text generation with fusewheel, PyTorch and other runtimes: one prompt, the same weights.

Each run has a process of its own, and the runtimes take turns: a round runs every one once. What
is missing or fails stands in the table with the reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import machine
from benchmarks.goals import judged, peer_goals
from benchmarks.results import Cell
from benchmarks.runtimes import models
from benchmarks.runtimes.names import EAGER, LLAMA_CPP, ORT_FP32, ORT_INT4, RUNTIMES
from benchmarks.runtimes.request import Answer, Request
from benchmarks.tables import Column, Panels, Table, met, wrapped
from fusewheel._core.process import ChildError, run_program

# Names in `Cell.more`.
PREFILL, FIRST, AGAIN, SAME = "prefill", "first", "again", "same"
FIRST_TOKENS = 100
_GAPS = (EAGER, ORT_FP32, ORT_INT4, LLAMA_CPP)

# Takes a request, the seconds that it may take, and a folder for the caches of compilers.
Start = Callable[[Request, float, Path], Answer]


def add_options(parser: argparse.ArgumentParser) -> None:
    usual = [name for name in models.MODELS if name != models.TINY]
    parser.add_argument("--models", nargs="*", choices=list(models.MODELS), default=usual)
    parser.add_argument("--peers", nargs="*", choices=list(RUNTIMES), default=list(RUNTIMES))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 4, 16], help="prompts")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of a timed run")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each runtime")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs in a process")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a process may take")
    parser.add_argument(
        "--folder", type=Path, help="keep the converted models here, and use those that are there"
    )


@dataclass
class Found:
    """What all processes of one runtime measured so far."""

    name: str
    note: str = ""
    answers: list[Answer] = field(default_factory=list)


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Model by model, batch by batch."""
    with tempfile.TemporaryDirectory() as temporary:
        for model in options.models:
            folder = (options.folder or Path(temporary)) / model
            prompt = _prepared(model, folder)
            reasons = _reasons(options.peers, folder)
            for batch in options.batches:
                for threads in options.threads:
                    request = Request(
                        runtime="",
                        folder=str(folder.resolve()),
                        prompts=rows(prompt, options.prompt, batch),
                        tokens=options.tokens,
                        first=min(FIRST_TOKENS, options.tokens + 4),
                        repeats=options.repeats,
                        seconds=options.limit / 10,
                        threads=threads,
                        started=0.0,
                    )
                    found = measure(request, reasons, options, _starter(options.isa))
                    yield from table_cells(models.TITLES[model], request, found)


def rows(prompt: Sequence[int], length: int, batch: int) -> list[list[int]]:
    """Prompts of one length, all different: a runtime may share equal ones."""
    text = list(prompt) * (-(-(length + batch) // len(prompt)))
    return [text[row : row + length] for row in range(batch)]


def measure(
    request: Request, reasons: dict[str, str], options: argparse.Namespace, start: Start
) -> list[Found]:
    """Every runtime in every round, in an order that rotates."""
    found = [Found(name, reason) for name, reason in reasons.items()]
    turns = []
    for turn in range(options.rounds):
        shift = turn % len(found)
        turns += found[shift:] + found[:shift]
    with tempfile.TemporaryDirectory() as caches:
        for number, one in enumerate(turns, 1):
            if one.note:
                continue
            _say(f"run {number} of {len(turns)}, prompts: {len(request.prompts)}: {one.name}")
            asked = Request(**{**vars(request), "runtime": one.name, "started": time.time()})
            try:
                one.answers.append(start(asked, options.limit, Path(caches) / one.name))
            except ChildError as error:
                late = f"it took more than {options.limit:g} s"
                one.note = late if error.late else _reason(error)
    return found


def table_cells(title: str, request: Request, found: Iterable[Found]) -> Iterator[Cell]:
    """One of each runtime, with figures or with a reason."""
    found = list(found)
    rows = len(request.prompts)
    tokens = {one.name: one.answers[0].tokens for one in found if one.answers}
    # A new token of one row.
    seconds = {
        one.name: _median(one, "decodes") / request.tokens / rows for one in found if one.answers
    }
    for one in found:
        measured = {name: seconds[name] for name in _GAPS if name in seconds}
        own = seconds.get(one.name, float("inf"))
        more, peaks = {}, {}
        if one.answers:
            more = {
                PREFILL: _median(one, "prefills"),
                FIRST: one.answers[0].first,
            }
            if later := one.answers[1:]:
                more[AGAIN] = statistics.median(answer.first for answer in later)
            if EAGER in tokens and tokens[one.name]:
                more[SAME] = float(_same(tokens[one.name], tokens[EAGER]))
            peaks = {one.name: max(answer.peak for answer in one.answers)}
        reached = {name: other / own for name, other in measured.items()}
        goals = {b: goal for b, goal in peer_goals(one.name, rows).items() if b in reached}
        yield Cell(
            name=one.name,
            case=f"{title} x {rows}",
            dtype=RUNTIMES[one.name].weights,
            threads=request.threads,
            direction="fwd",
            seconds=own,
            baselines=measured,
            roof=0.0,
            goals=judged(goals, reached) if one.answers else {},
            peaks=peaks,
            note=one.note,
            more=more,
        )


def _median(one: Found, what: str) -> float:
    return statistics.median(x for answer in one.answers for x in getattr(answer, what))


def _same(mine: Sequence[int], theirs: Sequence[int]) -> int:
    """How many of the first tokens are equal."""
    pairs = list(zip(mine, theirs, strict=False))
    return next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))


def _prepared(model: str, folder: Path) -> list[int]:
    """The prompt of a model, whose files are made unless they are there."""
    prompt = folder / "prompt.json"
    done = folder / "done"
    if done.exists():
        found: list[int] = json.loads(prompt.read_text())
        return found
    folder.mkdir(parents=True, exist_ok=True)
    _say(f"{model}: writing its files")
    found = models.prepare(model, folder)
    done.touch()
    return found


def _reasons(names: Sequence[str], folder: Path) -> dict[str, str]:
    """Why a runtime cannot take part, "" for those that can; makes the models of ONNX Runtime."""
    found = {}
    for name in names:
        kind = RUNTIMES[name]
        found[name] = ""
        if kind.package and importlib.util.find_spec(kind.package) is None:
            found[name] = f"{kind.package} is not installed"
        elif kind.module == "with_onnx" and not (folder / f"built-{name}").exists():
            _say(f"{name}: building its model")
            found[name] = models.build(kind.options["precision"], folder)
            if not found[name]:
                (folder / f"built-{name}").touch()
    return found


def _starter(level: str | None) -> Start:
    def start(request: Request, limit: float, caches: Path) -> Answer:
        command = [sys.executable, "-m", "benchmarks.runtimes", request.dumps()]
        variables = {
            **machine.environment(level),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "OMP_NUM_THREADS": str(request.threads),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "FUSEWHEEL_CACHE": str(caches / "fusewheel"),
        }
        printed = run_program(command, limit, variables)
        return Answer(**json.loads(printed.strip().splitlines()[-1]))

    return start


def _reason(error: ChildError) -> str:
    """The exception, which stands in the last line that a program prints."""
    lines = [line.strip() for line in error.details.splitlines() if line.strip()]
    return (lines[-1] if lines else str(error)).replace("|", "/")[:160]


def _say(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


def panels(measured: Sequence[Cell]) -> Panels:
    """One of each model and batch: new tokens a second against each baseline."""
    found: Panels = {}
    for cell in measured:
        panel = found.setdefault(f"{cell.case}, threads: {cell.threads}", {})
        if cell.seconds < float("inf"):
            panel[cell.name] = {f"against {b}": cell.ratio(b) for b in cell.baselines}
    return {name: panel for name, panel in found.items() if panel}


def notes(options: argparse.Namespace) -> str:
    return wrapped(
        f"Greedy text generation: {options.prompt} tokens in, {options.tokens} out, the same "
        "prompts and weights. PyTorch and fusewheel: `model.generate` of transformers; fusewheel "
        "with `fusewheel.freeze(model)`, after `quantize_` where the weights are quantised. "
        "`ours-gguf`: `fusewheel.load_gguf` on the file of llama.cpp and OpenVINO. The others: "
        "their own loops. `x 4`: four prompts at once. "
        f"`prefill`: ms until each prompt has its first new token. `tokens/s`: of all prompts "
        f"together, from then on. `first {FIRST_TOKENS}`: seconds from the start of a new process, "
        "which loads, compiles and reads the prompt, until so many tokens are there; caches of "
        "compilers are empty. `again`: the same with the caches that this process left. `MiB`: the "
        "peak resident memory of the whole process. `same`: how many of the first tokens of the "
        "first prompt are those of eager PyTorch in float32; rounded weights choose others. "
        f"Medians of {options.rounds} processes with {options.repeats} timed runs each, which take "
        "turns with the others. Models: SmolLM2 has its real weights, the Llamas random ones."
    )


def _more(name: str, form: Callable[[float], str]) -> Callable[[Cell], str]:
    return lambda cell: form(cell.more[name]) if name in cell.more else "-"


def _tokens(cell: Cell) -> str:
    return f"{1 / cell.seconds:.1f}" if cell.seconds < float("inf") else "-"


def _ratio(baseline: str) -> Callable[[Cell], str]:
    def text(cell: Cell) -> str:
        known = baseline in cell.baselines and cell.seconds < float("inf")
        return f"{cell.ratio(baseline):.2f}" if known else "-"

    return text


def _mebibytes(cell: Cell) -> str:
    return f"{cell.peaks[cell.name] / 2**20:.0f}" if cell.peaks.get(cell.name) else "-"


def _remarks(cell: Cell) -> str:
    goals = [f"{goal} {'met' if reached else 'missed'}" for goal, reached in cell.goals.items()]
    return ", ".join([*goals, *([cell.note] if cell.note else [])])


TABLE = Table(
    title="Beside other runtimes",
    columns=(
        Column("model", -17, lambda cell: cell.case),
        Column("runtime", -14, lambda cell: cell.name),
        Column("weights", -11, lambda cell: cell.dtype),
        Column("threads", 7, lambda cell: str(cell.threads)),
        Column("prefill", 8, _more(PREFILL, lambda value: f"{value * 1e3:.0f}")),
        Column("tokens/s", 8, _tokens),
        Column("x ort-int4", 10, _ratio(ORT_INT4)),
        Column("x llama.cpp", 11, _ratio(LLAMA_CPP)),
        Column(f"first {FIRST_TOKENS}", 9, _more(FIRST, lambda value: f"{value:.1f}")),
        Column("again", 6, _more(AGAIN, lambda value: f"{value:.1f}")),
        Column("MiB", 6, _mebibytes),
        Column("same", 5, _more(SAME, lambda value: f"{value:.0f}")),
        Column("goals and remarks", -1, _remarks),
    ),
    notes=notes,
    add_options=add_options,
    cells=cells,
    summary=met,
    panels=panels,
)
