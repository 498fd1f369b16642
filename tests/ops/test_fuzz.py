"""Every operator with arguments that nobody thought of; `nox -s fuzz` tries many more."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusewheel import ops
from fusewheel.dispatch.operator import Operator
from fuzz.case import Case, cases
from fuzz.draw import Strategy
from fuzz.judge import Arguments
from fuzz.spoil import spoiled
from hypothesis import HealthCheck, Phase, given, settings
from oracle import emulated, slow, tensors_of

# Of all operators together. Without being asked for a number the same ones every time.
WANTED = os.environ.get("FUSEWHEEL_FUZZ")
CASES = int(WANTED or (72 if slow() else 200))
# Where one call is wrong, so many are right.
RIGHT = 3


def strategies() -> dict[str, Strategy]:
    """By operator, from the test modules of their stems."""
    found: dict[str, Strategy] = {}
    for path in sorted(Path(__file__).parent.glob("*/test_*.py")):
        module = importlib.import_module(f"ops.{path.parent.name}.{path.stem}")
        found |= getattr(module, "FUZZ", {})
    return found


STRATEGIES = strategies()


def try_all(strategy: Any, share: float, check: Callable[[Any], None]) -> None:
    """Checks an operator's share of the cases."""
    count = max(1, round(share * CASES / len(ops.operators())))
    options = settings(
        max_examples=count,
        derandomize=WANTED is None,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    options(given(strategy)(check))()


def strategy_of(operator: Operator) -> Strategy:
    assert operator.name in STRATEGIES, (
        f"the test module of {operator.name} must have a strategy for its arguments, "
        f'FUZZ = {{"{operator.name}": ...}}'
    )
    return STRATEGIES[operator.name]


def test_any_arguments(operator: Operator):
    def check(case: Case) -> None:
        case.check()

    try_all(cases(operator, strategy_of(operator)), RIGHT / (RIGHT + 1), check)


def test_any_mistake(operator: Operator):
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

    try_all(spoiled(operator, strategy_of(operator)), 1 / (RIGHT + 1), check)
