"""`python -m mutants 60 --seed 7 --of cpu patterns`: see CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mutants.sources import FILES, draw
from mutants.trial import Result, Trial, Trials
from mutants.workspace import ROOT, Workspace

MOST_SURVIVORS = 0.05
KINDS = tuple(FILES)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="nox -s mutants --", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=60, help="how many; default 60")
    parser.add_argument("--seed", type=int, help="of what is drawn; default: another every time")
    parser.add_argument(
        "--of", nargs="+", choices=KINDS, default=list(KINDS), help="what is broken; default: all"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--levels", type=json.loads, default={}, help=argparse.SUPPRESS)
    parser.add_argument("--marks", type=json.loads, default={}, help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    if chosen.seed is None:
        chosen.seed = secrets.randbelow(2**32)
    return chosen


def trials(chosen: argparse.Namespace) -> list[Trial]:
    """Draws mutants and tries them, until so many are counted."""
    kernels = [kind for kind in ("cpu", "cuda") if kind in chosen.of]
    if set(chosen.of) - {"cuda"}:
        kernels = list(dict.fromkeys(["cpu", *kernels]))
    by_kernels: dict[str, Trials] = {}
    for kind in kernels:
        workspace = Workspace(chosen.folder, kind)
        print(f"building: {kind}", flush=True)
        workspace.prepare()
        by_kernels[kind] = Trials(workspace, chosen.levels, chosen.marks)
    done: list[Trial] = []
    counted = 0
    for mutant in draw(chosen.of, workspace.tree, chosen.seed):
        if counted == chosen.count:
            break
        trial = by_kernels["cuda" if mutant.kind == "cuda" else "cpu"].run(mutant)
        print(f"{counted + trial.counted}/{chosen.count} {trial}", flush=True)
        counted += trial.counted
        done.append(trial)
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
