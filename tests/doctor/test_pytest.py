"""The doctor in pytest: a function of a module, and the plug-in that needs no test file."""

from __future__ import annotations

import subprocess
import sys

import pytest
from nightly import NIGHTLY

pytest_plugins = ["pytester"]

SAMPLES = """
import torch

library = torch.library.Library("pytested", "DEF")
library.define("half(Tensor x) -> Tensor")
library.define("skips(Tensor x) -> Tensor")
library.impl("half", lambda x: x / 2, "CPU")
library.impl("skips", lambda x: x.as_strided(x.shape, (4, 1)) * 2, "CPU")

def samples():
    return [(torch.ones(3, 4),)]
"""


@pytest.fixture
def package(pytester: pytest.Pytester) -> pytest.Pytester:
    """Where an operator that is well, one that is not, and samples for them are."""
    pytester.makepyfile(operators=SAMPLES)
    pytester.syspathinsert()
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    # In a process of its own, as the operators are registered once.
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-v", *arguments)


@NIGHTLY
def test_a_function_with_one_test_for_each_column(package: pytest.Pytester):
    package.makepyfile(
        """
        import fusewheel, operators, torch

        columns = ("eager", "gaps", "empty", "scalars")
        test_half = fusewheel.doctor.tests_of(
            torch.ops.pytested.half, operators.samples, columns=columns
        )
        test_skips = fusewheel.doctor.tests_of(
            torch.ops.pytested.skips, operators.samples(), columns=["gaps"], isolate=False
        )
        """
    )
    result = run(package)
    result.assert_outcomes(passed=3, skipped=1, failed=1)
    result.stdout.fnmatch_lines(["*test_half?eager? PASSED*", "*test_half?scalars? SKIPPED*"])
    result.stdout.fnmatch_lines(["strides ignored", "input: (float32[[]*[]])", "mend:  Read*"])


def test_the_plug_in_adds_a_test_for_each_column(package: pytest.Pytester):
    package.makeini("[pytest]\ndoctor =\n    pytested::half operators:samples\n")
    package.makepyfile("def test_of_its_own(): pass")
    run(package).assert_outcomes(passed=1)
    chosen = "of_its_own or half and (eager or scalars or deterministic)"
    result = run(package, "--doctor", "-k", chosen)
    result.assert_outcomes(passed=3, skipped=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["doctor::pytested::half?eager? PASSED*"])


def test_the_plug_in_refuses_what_does_not_exist(package: pytest.Pytester):
    package.makeini("[pytest]\ndoctor = pytested::nothing operators:samples\n")
    package.makepyfile("def test_of_its_own(): pass")
    result = run(package, "--doctor")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'pytested::nothing operators:samples': *nothing*"])


def test_other_runs_of_pytest_import_neither_torch_nor_fusewheel(package: pytest.Pytester):
    package.makepyfile("def test_of_its_own(): pass")
    code = """
import sys, pytest
assert pytest.main(["-q", "--doctor"]) == 0
assert "fusewheel_pytest" in sys.modules
assert not {"torch", "fusewheel"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=package.path, timeout=120)
