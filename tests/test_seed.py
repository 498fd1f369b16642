"""Random numbers belong to the seed and the test, and to nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nightly import NIGHTLY

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


# Runs pytest several times in one process, which imports torch once.
RUNS = """
import json
import sys
import pytest

for options in json.loads(sys.argv[1]):
    print("run", flush=True)
    if code := pytest.main(["-s", "-p", "no:cacheprovider", *options]):
        sys.exit(code)
"""


@pytest.fixture
def run(tmp_path: Path):
    """Runs the two tests, once with each of some options, in one process.

    Returns of each run the numbers of either test and all that was written.
    """
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_numbers.py").write_text(TESTS)

    def run(*runs: list[str]) -> list[tuple[dict[str, str], str]]:
        command = (sys.executable, "-c", RUNS, json.dumps(runs))
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        texts = re.split("^run$", done.stdout, flags=re.MULTILINE)[1:]
        return [(dict(re.findall(r"numbers (\w) (.*)", text)), text) for text in texts]

    return run


@NIGHTLY
def test_a_run_says_how_to_have_its_numbers_again(run, tmp_path: Path):
    """In any number of processes, and of one test alone."""
    pytest.importorskip("xdist")
    writes = '    open(f"{name}.txt", "w").write(" ".join(map(str, numbers)))'
    (tmp_path / "test_numbers.py").write_text(TESTS + writes)
    [(_, text)] = run(["-p", "xdist.plugin", "-n", "2"])
    apart = {name: (tmp_path / f"{name}.txt").read_text() for name in "ab"}
    assert apart["a"] != apart["b"]

    def seed(text: str) -> str:
        return re.search(r"again with --seed (\d+)", text)[1]

    first = seed(text)
    (together, text), (alone, one), (after, _) = run(
        ["--seed", first],
        ["test_numbers.py::test[b]"],
        ["test_numbers.py::test[b]", "--seed", first],
    )
    assert together == apart
    assert f"seed: {first}; again with --seed {first}" in text
    # Alone it has the numbers that it has after others, and of another seed other numbers.
    assert after == {"b": together["b"]}
    assert seed(one) != first and alone["b"] != together["b"]
