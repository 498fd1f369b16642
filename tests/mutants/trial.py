"""One mutant at a time: built, tested, taken back."""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

from mutants import tests_of
from mutants.mutant import Mutant
from mutants.tests_of import Run
from mutants.workspace import BuildError, Workspace

SECONDS = 900.0  # after which a run of tests counts as one that never ends


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
        levels: the environments that hold kernels and PyTorch to older instructions, by level.
        marks: the environment in which a process ends that writes behind its memory.
    """

    def __init__(
        self, workspace: Workspace, levels: dict[str, dict[str, str]], marks: dict[str, str]
    ) -> None:
        self.workspace = workspace
        self.levels = levels
        self.marks = marks
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
        """Compiles for a few operators and tests these; if that is survived, for all the others."""
        tree, users = self.workspace.tree, self.workspace.users(mutant.path)
        self.workspace.write(mutant.path, mutant.mutated)
        all_of_them = tests_of.operators_with(users.stems, mutant.path, tree)
        chosen = tests_of.few(all_of_them, mutant.path.stem, tree)
        others = [stem for stem in all_of_them if stem not in chosen]
        changed = False
        for stems in (chosen, others):
            if not stems and changed:
                continue
            wanted = [
                file
                for file, stem in users.objects.items()
                if stem in stems or stem not in all_of_them
            ]
            if not self.workspace.compile(wanted):
                continue
            changed = True
            runs = [run for stem in stems for run in tests_of.operator_tests(stem, tree)]
            if mutant.kind == "cpu":
                runs += [run for stem in stems for run in tests_of.older(stem, self.levels)]
            if stems is chosen:
                runs += tests_of.shared_tests(mutant.path)
            by = self._first_red(mutant, runs)
            if by:
                return Result.KILLED, by
        return (Result.SURVIVED if changed else Result.SAME), ""

    def _first_red(self, mutant: Mutant, runs: Iterable[Run]) -> str:
        """The first test that the mutant turns red; empty if there is none."""
        for run in runs:
            while True:
                code, failed = self._pytest(run)
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
        code, red = self._pytest(again)
        self.workspace.put_back(mutant.path, mutant.mutated, built)
        if code == 0:
            self.green.append(again)
        elif not red:
            raise RuntimeError(f"pytest ends with {code} without a mutant: {run.arguments}")
        else:
            print(f"    left out, because it is red without a mutant: {red}", flush=True)
            self.red.add(red)
        return code == 0

    def _pytest(self, run: Run) -> tuple[int, str]:
        """The exit status of pytest, and the test that failed."""
        cache = self.workspace.site.parent / "pytest"
        last = cache / "v" / "cache" / "lastfailed"
        last.unlink(missing_ok=True)
        paths = [str(self.workspace.site), str(self.workspace.tree / "tests")]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "OMP_NUM_THREADS": "2",
            **self.marks,
            **run.env,
        }
        command = [sys.executable, "-m", "pytest", "-v", "-x", "-o", f"cache_dir={cache}"]
        command += [f"--deselect={name}" for name in sorted(self.red)]
        try:
            done = subprocess.run(
                [*command, *run.arguments],
                cwd=self.workspace.tree,
                env=env,
                timeout=SECONDS,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
            return -1, _unfinished(output if isinstance(output, str) else output.decode())
        failed = list(json.loads(last.read_text())) if last.exists() else []
        return done.returncode, failed[0] if failed else _unfinished(done.stdout)


def _unfinished(output: str) -> str:
    """The test that pytest had begun when it ended: its line has no result yet."""
    begun = [line for line in output.splitlines() if line.startswith("tests/") and "::" in line]
    return begun[-1].strip() if begun and "%]" not in begun[-1] else ""
