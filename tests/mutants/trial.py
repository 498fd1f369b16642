"""One mutant at a time: built, tested, taken back."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mutants import tests_of
from mutants.mutant import Mutant
from mutants.runner import Runner
from mutants.tests_of import Run
from mutants.workspace import BuildError, Workspace


class Result(enum.Enum):
    """What became of a mutant. Those that are not counted are replaced by others."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    SAME = "not counted: the library is the same"
    INVALID = "not counted: it does not compile"


@dataclass(frozen=True)
class Trial:
    """A mutant and what became of it.

    Attributes:
        mutant: what was broken.
        result: what became of it.
        by: the test that found it.
        seconds: how long that took.
    """

    mutant: Mutant
    result: Result
    by: str
    seconds: float

    @property
    def counted(self) -> bool:
        """Whether it says something of the tests."""
        return self.result in (Result.KILLED, Result.SURVIVED)

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"{self.mutant}\n    {self.result.value}{by} ({self.seconds:.0f} s)"


class Trials:
    """Tries mutants in a workspace.

    Args:
        workspace: where; it has been prepared.
        runner: runs its tests.
        levels: the environments that hold kernels and PyTorch to instructions, by level: those that
            this processor chooses first.
    """

    def __init__(
        self, workspace: Workspace, runner: Runner, levels: dict[str, dict[str, str]]
    ) -> None:
        self.workspace = workspace
        self.runner = runner
        self.levels = levels
        self.red: set[str] = set()  # tests that fail without any mutant
        self.green: list[Run] = []

    def run(self, mutant: Mutant) -> Trial:
        """Tries one."""
        start = time.monotonic()
        try:
            result, by = self._result(mutant)
        except BuildError:
            result, by = Result.INVALID, ""
        finally:
            self.workspace.recall(mutant.path, mutant.text)
        return Trial(mutant, result, by, time.monotonic() - start)

    def _result(self, mutant: Mutant) -> tuple[Result, str]:
        if mutant.path.suffix == ".py":
            self.workspace.write(mutant.path, mutant.mutated)
            of = tests_of.column_tests if mutant.kind == "columns" else tests_of.pattern_tests
            by = self._first_red(mutant, of(mutant.path, self.workspace.tree))
            return (Result.KILLED if by else Result.SURVIVED), by
        return self._kernel(mutant)

    def _kernel(self, mutant: Mutant) -> tuple[Result, str]:
        """Compiles for few operators and one level and tests that; if it is survived, the next."""
        tree, users = self.workspace.tree, self.workspace.users(mutant.path)
        self.workspace.write(mutant.path, mutant.mutated)
        operators = tests_of.operators_with(users.stems, mutant.path, tree)
        parts = tests_of.parts(operators, mutant.path.stem, tree)
        shared = {file for file, stem in users.objects.items() if stem not in operators}
        built: set[Path] = set()
        reached: set[str] = set()  # levels at which what operators share has changed
        changed = False
        for stems in parts:
            own = {file for file, stem in users.objects.items() if stem in stems}
            here = set(reached)
            for level, env in self.levels.items():
                # What is of no level is at every level.
                wanted = {f for f in own | shared if tests_of.level_of(f) in ("", level)} - built
                built |= wanted
                if wanted and self.workspace.compile(wanted):
                    general = any(not tests_of.level_of(file) for file in wanted)
                    here |= set(self.levels) if general else {level}
                    reached |= here if wanted & shared else set()
                if level not in here:
                    continue
                changed = True
                native = level == next(iter(self.levels))
                runs = [
                    Run(run.arguments, {**run.env, **env})
                    for stem in stems
                    for run in tests_of.operator_tests(stem, tree, of_numbers=not native)
                ]
                if native and stems is parts[0]:
                    runs += tests_of.shared_tests(mutant.path)
                if by := self._first_red(mutant, runs):
                    return Result.KILLED, by
        return (Result.SURVIVED if changed else Result.SAME), ""

    def _first_red(self, mutant: Mutant, runs: Iterable[Run]) -> str:
        """The first test that the mutant turns red; empty if there is none."""
        for run in runs:
            while True:
                code, failed = self.runner.run(run, self.red)
                if code in (0, 5):  # 5: no test was chosen
                    break
                if self._passes_without(mutant, run, code, failed):
                    end = "" if code == 1 else f", the end of the process ({code})"
                    return f"{failed}{end}"
        return ""

    def _passes_without(self, mutant: Mutant, run: Run, code: int, failed: str) -> bool:
        """Whether a test is green without the mutant. One that is not is left out from then on.

        Where a process has ended before its test did, all the tests before that run again.
        """
        again = Run((failed, *run.options), run.env) if code == 1 else run
        if again in self.green:
            return True
        built = self.workspace.take_away(mutant.path, mutant.text)
        code, red = self.runner.run(again, self.red)
        self.workspace.put_back(mutant.path, mutant.mutated, built)
        if code == 0:
            self.green.append(again)
        elif not red:
            raise RuntimeError(f"pytest ends with {code} without a mutant: {run.arguments}")
        else:
            print(f"    left out, because it is red without a mutant: {red}", flush=True)
            self.red.add(red)
        return code == 0
