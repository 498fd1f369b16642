"""A planted survivor is reported, and what is found is not."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from levels import OLDER_LEVELS, executable
from nightly import NIGHTLY

from mutants.__main__ import arguments, passes, report
from mutants.mutant import Change, Mutant
from mutants.runner import Runner
from mutants.tests_of import Run
from mutants.trial import Result, Trial, Trials
from mutants.workspace import Workspace, synchronise

MODULE = Path("python/fusewheel/compiler/patterns/double.py")
TEXT = "def double(x):\n    return 2 * x\n\n\ndef unread(x):\n    return x + 1\n"
TEST = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parents[2] / "python/fusewheel/compiler/patterns"))
from double import double


def test_double():
    assert double(3) == 6


def test_that_is_always_red():
    assert {red}
"""


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Trials]:
    """A copy of a repository with one module, and one test of half of it."""
    workspace = Workspace(tmp_path, "cpu")
    test = workspace.tree / "tests" / "compiler" / "test_double.py"
    for file, text in ((workspace.tree / MODULE, TEXT), (test, TEST.format(red=True))):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    workspace.package.mkdir(parents=True)
    runner = Runner(workspace, {}, ())
    yield Trials(workspace, runner, {"": {}})
    runner.close()


def mutant(old: str, new: str) -> Mutant:
    start = TEXT.index(old)
    return Mutant("patterns", MODULE, TEXT, Change(start, start + len(old), new))


def test_a_planted_survivor_is_reported(trials: Trials):
    done = [trials.run(mutant("*", "+")), trials.run(mutant("+", "-"))]
    assert [trial.result for trial in done] == [Result.KILLED, Result.SURVIVED]
    assert done[0].by == "tests/compiler/test_double.py::test_double"
    text = report(done)
    assert "patterns: 2 tried, 1 killed, 1 survived" in text
    assert "-    return x + 1\n+    return x - 1" in text
    assert "2 + x" not in text
    assert not passes(done)
    assert (trials.workspace.tree / MODULE).read_text() == TEXT


@NIGHTLY
def test_a_test_that_is_always_red_kills_nothing(
    trials: Trials, capsys: pytest.CaptureFixture[str]
):
    test = trials.workspace.tree / "tests" / "compiler" / "test_double.py"
    test.write_text(TEST.format(red=False))
    assert trials.run(mutant("+", "-")).result is Result.SURVIVED
    assert "left out, because it is red without a mutant" in capsys.readouterr().out


@NIGHTLY
def test_tests_that_cannot_be_collected_are_an_error(trials: Trials):
    with pytest.raises(RuntimeError, match="pytest ends with 4 without a mutant"):
        trials._first_red(mutant("+", "-"), [Run(("tests/there_is_none.py",))])


ENDLESS = """
def test_without_an_end():
    while True:
        pass
"""


@NIGHTLY
def test_a_test_that_never_ends_is_ended(trials: Trials):
    trials.runner.test_seconds = 1
    (trials.workspace.tree / "tests" / "test_endless.py").write_text(ENDLESS)
    code, test = trials.runner.run(Run(("tests/test_endless.py",)), set())
    assert (code, test) == (-signal.SIGXCPU, "tests/test_endless.py::test_without_an_end")


def test_levels_are_those_that_the_processor_has_the_best_first():
    assert list(executable("v4")) == ["v4", "v3", "baseline"]
    assert list(executable("v3")) == ["v3", "baseline"]
    assert executable("baseline") == {"baseline": {}}
    v3 = executable("v4")["v3"]
    assert v3 == {"FUSEWHEEL_CPU_ISA": "v3", **OLDER_LEVELS["v3"]}


def test_fewer_than_five_in_a_hundred_may_survive():
    one = mutant("+", "-")
    killed = [Trial(one, Result.KILLED, "", 1.0)] * 20
    survived, same = (Trial(one, result, "", 1.0) for result in (Result.SURVIVED, Result.SAME))
    assert passes([*killed, survived])
    assert not passes([*killed[1:], survived])
    assert not passes([*killed[1:], survived, *[same] * 20])


def test_a_seed_is_drawn_where_none_is_given():
    assert arguments(["7", "--seed", "3", "--of", "cpu"]).seed == 3
    first, second = arguments([]), arguments([])
    assert (first.count, first.seed != second.seed) == (60, True)


def test_the_copy_is_equal_and_keeps_times(tmp_path: Path):
    root, copy = tmp_path / "root", tmp_path / "copy"
    root.mkdir()
    subprocess.run(("git", "init", "--quiet", str(root)), check=True)
    (root / ".gitignore").write_text("build/\n")
    for name in ("a", "b", "build/c"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)
    synchronise(root, copy)
    assert sorted(p.name for p in copy.rglob("*")) == [".gitignore", "a", "b"]
    before = (copy / "a").stat().st_mtime_ns
    (root / "b").unlink()
    (root / "d").write_text("d")
    (copy / "a").write_text("mutated")
    synchronise(root, copy)
    assert (copy / "a").read_text() == "a"
    assert sorted(p.name for p in copy.rglob("*")) == [".gitignore", "a", "d"]
    after = (copy / "a").stat().st_mtime_ns
    synchronise(root, copy)
    assert before != after == (copy / "a").stat().st_mtime_ns
