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


def test_the_same_seed_gives_each_test_the_same_numbers(run):
    both, text = run("--seed", "7")
    assert "seed: 7; again with --seed 7" in text
    assert both["a"] != both["b"]
    alone, _ = run("--seed", "7", "test_numbers.py::test[b]")
    assert alone == {"b": both["b"]}


def test_another_run_has_other_numbers_and_tells_how_to_have_them_again(run):
    first, text = run()
    second, _ = run()
    assert first["a"] != second["a"]
    again, _ = run("--seed", re.search(r"again with --seed (\d+)", text)[1])
    assert again == first


def test_all_processes_share_the_seed(run, tmp_path: Path):
    pytest.importorskip("xdist")
    writes = '    open(f"{name}.txt", "w").write(str(numbers))'
    (tmp_path / "test_numbers.py").write_text(TESTS + writes)

    def written() -> list[str]:
        return [(tmp_path / f"{name}.txt").read_text() for name in "ab"]

    _, text = run("-p", "xdist.plugin", "-n", "2")
    apart = written()
    run("--seed", re.search(r"again with --seed (\d+)", text)[1])
    assert written() == apart
