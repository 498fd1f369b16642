"""Random numbers belong to the seed and the test, and to nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
# Two tests that print their numbers.
TESTS = """
import random
import numpy
import pytest
import torch

@pytest.mark.parametrize("name", ["a", "b"])
def test(name):
    numbers = torch.rand(()).item(), numpy.random.rand(), random.random()
    print("\\nnumbers", name, *numbers)
"""


@pytest.fixture
def run(tmp_path: Path):
    """Runs the two tests, with options; returns the numbers of either and all that was written."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_numbers.py").write_text(TESTS)

    def run(*options: str) -> tuple[dict[str, str], str]:
        command = (sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *options)
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(re.findall(r"numbers (\w) (.*)", done.stdout)), done.stdout

    return run


def test_a_run_says_how_to_have_its_numbers_again(run, tmp_path: Path):
    """In any number of processes, and of one test alone."""
    pytest.importorskip("xdist")
    writes = '    open(f"{name}.txt", "w").write(" ".join(map(str, numbers)))'
    (tmp_path / "test_numbers.py").write_text(TESTS + writes)
    _, text = run("-p", "xdist.plugin", "-n", "2")
    apart = {name: (tmp_path / f"{name}.txt").read_text() for name in "ab"}
    assert apart["a"] != apart["b"]

    seed = re.search(r"again with --seed (\d+)", text)[1]
    together, text = run("--seed", seed)
    assert together == apart
    assert f"seed: {seed}; again with --seed {seed}" in text

    alone, text = run("test_numbers.py::test[b]")
    other = re.search(r"again with --seed (\d+)", text)[1]
    different, _ = run("--seed", other)
    assert different["a"] != together["a"]
    assert alone == {"b": different["b"]}
