"""`python -m mutants 60 --seed 7 --of cpu patterns`: see CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from levels import executable

from mutants.runner import Runner
from mutants.sources import FILES, draw
from mutants.trial import Result, Trial, Trials
from mutants.workspace import LIBRARIES, ROOT, Workspace

MOST_SURVIVORS = 0.05
KINDS = tuple(FILES)
# Before the tests run: the first for kernels, all for Python files, whose tests compile models.
IMPORTS = ("torch", "torch._dynamo", "torch._inductor.compile_fx", "transformers.modeling_utils")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="nox -s mutants --", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=60, help="how many; default 60")
    parser.add_argument("--seed", type=int, help="of what is drawn; default: another every time")
    parser.add_argument(
        "--of", nargs="+", choices=KINDS, default=list(KINDS), help="what is broken; default: all"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        help="kinds tried side by side; default: processors",
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--marks", type=json.loads, default={}, help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    if chosen.seed is None:
        chosen.seed = secrets.randbelow(2**32)
    return chosen


def trials(chosen: argparse.Namespace) -> list[Trial]:
    """Draws mutants and tries them, of each kind as many, until so many are counted.

    Kinds are tried side by side, each in a copy of its own.
    """
    spaces = {kind: Workspace(chosen.folder / kind, _library(kind)) for kind in chosen.of}
    built: dict[str, Workspace] = {}
    for kind, space in sorted(spaces.items(), key=lambda item: item[0] not in LIBRARIES):
        print(f"preparing: {kind}", flush=True)
        other = built.get(_library(kind))
        if other is None:
            space.prepare()
        else:
            space.prepare_beside(other)
        built.setdefault(_library(kind), space)
    share, more = divmod(chosen.count, len(spaces))
    jobs = [
        (kind, space, share + (i < more), chosen) for i, (kind, space) in enumerate(spaces.items())
    ]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        return [trial for done in pool.map(lambda job: _of_kind(*job), jobs) for trial in done]


def _library(kind: str) -> str:
    return kind if kind in LIBRARIES else "cpu"


def _of_kind(kind: str, space: Workspace, count: int, chosen: argparse.Namespace) -> list[Trial]:
    """Mutants of one kind, until so many are counted."""
    levels = {"": {}} if kind != "cpu" else executable(space.level())
    runner = Runner(space, chosen.marks, IMPORTS if kind not in LIBRARIES else IMPORTS[:1])
    trials = Trials(space, runner, levels)
    done: list[Trial] = []
    counted = 0
    try:
        for mutant in draw(kind, space.tree, chosen.seed):
            if counted == count:
                break
            trial = trials.run(mutant)
            counted += trial.counted
            print(f"{kind} {counted}/{count} {trial}", flush=True)
            done.append(trial)
    except Exception:
        traceback.print_exc()  # now, and not when the other kinds have ended
        raise
    finally:
        runner.close()
    return done


def report(done: Sequence[Trial]) -> str:
    """What was tried, by kind, and the survivors as diffs."""
    lines = []
    for kind in KINDS:
        results = Counter(t.result for t in done if t.mutant.kind == kind and t.counted)
        if results:
            killed, survived = results[Result.KILLED], results[Result.SURVIVED]
            lines.append(f"{kind}: {killed + survived} tried, {killed} killed, {survived} survived")
    survivors = [trial for trial in done if trial.result is Result.SURVIVED]
    lines += ["", *(trial.mutant.diff() for trial in survivors)]
    return "\n".join(lines)


def passes(done: Sequence[Trial]) -> bool:
    """Whether fewer than 5 % of those that count survived."""
    counted = [trial for trial in done if trial.counted]
    survived = sum(trial.result is Result.SURVIVED for trial in counted)
    return survived < MOST_SURVIVORS * len(counted)


def main() -> int:
    """Runs the session; 1 if too many mutants survive."""
    chosen = arguments()
    print(f"the same mutants again: nox -s mutants -- {chosen.count} --seed {chosen.seed}")
    done = trials(chosen)
    print(report(done))
    return 0 if passes(done) else 1


if __name__ == "__main__":
    sys.exit(main())
