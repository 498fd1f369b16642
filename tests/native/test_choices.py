"""Every way that the kernels can go on this machine gives the right numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from levels import OLDER_LEVELS
from nightly import NIGHTLY

from .choices import LEVEL, made, said, without

TESTS = Path(__file__).parents[1]


VALUES, GRADIENTS = "ops/test_values.py", "ops/test_autograd.py"
# A processor without a level has the one below instead. A change tries the values at the newest,
# of backward operators too, in the dtypes that the ways are about: of attention only
# attention_decode has more than one in float32. The night tries all dtypes and levels, and
# gradients, which call the same kernels.
SOME = "((linear or attention_decode) and float32 or (linear or attention) and bfloat16)"
TRIED = [
    pytest.param("v4", VALUES, SOME, id=f"v4-{VALUES}-some"),
    *(
        pytest.param(level, file, "(linear or attention)", marks=NIGHTLY, id=f"{level}-{file}")
        for level in ("baseline", "v3", "v4")
        for file in (VALUES, GRADIENTS)
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("level", "file", "those"), TRIED)
def test_the_ways_that_the_processor_does_not_choose(
    level: str, file: str, those: str, pytestconfig: pytest.Config
):
    automatic = made(without() | {LEVEL: level})
    others = {name: "10"[int(way)] for name, way in automatic.items() if name != LEVEL}
    seed = f"--seed={pytestconfig.option.seed}"
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", seed)
    tests = (str(TESTS / tried) for tried in ("native/test_level.py", file))
    chosen = ("-k", f"asked_for or (as_good_as_eager and {those})")
    done = subprocess.run(
        [*command, *tests, *chosen],
        capture_output=True,
        text=True,
        env=without() | {LEVEL: level} | OLDER_LEVELS.get(level, {}) | others,
        check=False,
    )
    assert done.returncode == 0, f"{others}: {done.stdout[-4000:]}"


@pytest.mark.parametrize("name", [LEVEL, "FUSEWHEEL_CPU_ROWS_IN_TURN"])
def test_a_value_that_cannot_be_is_an_error_of_every_call(name: str):
    text = """
import fusewheel, fusewheel_cpu, torch
for call in (lambda: fusewheel.mul(torch.ones(3), torch.ones(3)), fusewheel_cpu.choices):
    try:
        print(call())
    except (RuntimeError, ValueError) as error:
        print(type(error).__name__, error)
"""
    environment = without() | {name: "yes"}
    expected = "baseline, v3 or v4" if name == LEVEL else "0 or 1"
    message = f"{name} must be {expected}, got 'yes'"
    lines = said(text, environment).splitlines()
    assert lines == [f"RuntimeError {message}", f"ValueError {message}"]
