"""Every operator with arguments that nobody thought of; `nox -s fuzz` tries many more."""

from __future__ import annotations

import importlib
import os
import zlib
from pathlib import Path

import pytest
import torch
from fusewheel.dispatch.operator import Operator
from fuzz.case import Case, cases
from fuzz.draw import Strategy
from fuzz.run import try_all
from fuzz.spoil import spoiled
from neighbours import Arguments
from oracle import emulated, slow, tensors_of

# Of each operator, and as many with a mistake. Without being asked for a number the same ones every
# time; else as `--seed` says.
WANTED = os.environ.get("FUSEWHEEL_FUZZ")
CASES = int(WANTED or (3 if slow() else 25))


def strategies() -> dict[str, Strategy]:
    """By operator, from the test modules of their stems."""
    found: dict[str, Strategy] = {}
    for path in sorted(Path(__file__).parent.glob("*/test_*.py")):
        module = importlib.import_module(f"ops.{path.parent.name}.{path.stem}")
        found |= getattr(module, "FUZZ", {})
    return found


STRATEGIES = strategies()


@pytest.fixture
def number(request: pytest.FixtureRequest) -> int:
    """The cases are drawn from it."""
    return torch.initial_seed() if WANTED else zlib.crc32(f"2 {request.node.nodeid}".encode())


def strategy_of(operator: Operator) -> Strategy:
    assert operator.name in STRATEGIES, (
        f"the test module of {operator.name} must have a strategy for its arguments, "
        f'FUZZ = {{"{operator.name}": ...}}'
    )
    return STRATEGIES[operator.name]


def test_any_arguments(operator: Operator, pytestconfig: pytest.Config, number: int):
    def check(case: Case) -> None:
        case.check()

    try_all(pytestconfig, cases(operator, strategy_of(operator)), check, CASES, number)


def test_any_mistake(operator: Operator, pytestconfig: pytest.Config, number: int):
    """It is refused with a message, or is none."""

    def check(arguments: Arguments) -> None:
        try:
            got = tensors_of(operator.overload(*arguments))
        except (RuntimeError, TypeError, ValueError) as error:
            assert str(error)
            return
        if emulated():  # a GPU does not look whether there are such classes and positions
            return
        want = tensors_of(operator.reference(*arguments))
        for a, b in zip(got, want, strict=True):
            assert a is b is None or (a.shape, a.dtype) == (b.shape, b.dtype)

    try_all(pytestconfig, spoiled(operator, strategy_of(operator)), check, CASES, number)
