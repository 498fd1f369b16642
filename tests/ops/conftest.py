"""Every test that takes `operator` runs over all declared operators; `dtype` over all dtypes.

With `--operator STEM` they run over those that `ops/FAMILY/STEM.py` declares; of the other tests
only those in `test_STEM.py`, `test_STEM_edges.py` and so on run.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from fusewheel import ops
from fusewheel.dispatch.operator import Operator
from nightly import NIGHTLY
from oracle import DTYPES, emulated
from stems import owner


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--operator", metavar="STEM", help="test the operators of one module only")


def modules() -> dict[str, Path]:
    """The file of every stem."""
    return {path.stem: path for path in Path(ops.__file__).parent.glob("*/[!_]*.py")}


def declared_by(stem: str | None) -> tuple[Operator, ...]:
    if stem is None:
        return ops.operators()
    paths = modules()
    if stem not in paths:
        raise pytest.UsageError(f"--operator {stem}: there is {', '.join(sorted(paths))}")
    module = importlib.import_module(f"fusewheel.ops.{paths[stem].parent.name}.{stem}")
    return tuple(module.OPERATORS)


def names_in(item: pytest.Item) -> set[str]:
    """The names of operators, and all else, that a test has for parameters."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {str(getattr(value, "name", value)) for value in values}


def pytest_configure(config: pytest.Config) -> None:
    declared_by(config.getoption("--operator"))  # an unknown one is one error, at once


# On the emulator, of the functions of test_autograd.py and test_values.py, what the night runs: the
# code is that which runs on the CPU kernels, or the kernels are judged by another test.
EMULATED_AT_NIGHT = (
    "test_only_what_is_asked_gets_a_gradient",
    "test_fake_promises_what_the_kernel_gives",
    "test_a_device_without_kernels_runs_the_reference",
)
# In one dtype before a change; the backward operators are judged in all by their values.
EMULATED_IN_FLOAT32 = "test_gradients_as_good_as_eager"


def at_night(item: pytest.Item) -> bool:
    name = getattr(item, "originalname", "")
    if name == EMULATED_IN_FLOAT32:
        return item.callspec.params["dtype"] != torch.float32
    return name in EMULATED_AT_NIGHT


# Of two operators every test that compiles nothing stands for all on other Pythons and torches.
MATRIX = ("muladd", "rms_norm")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and not names_in(item).isdisjoint(MATRIX):
            item.add_marker("matrix")
        if emulated() and item.path.parent == here and at_night(item):
            item.add_marker(NIGHTLY)
    stem = config.getoption("--operator")
    if stem is None:
        return
    names = {operator.name for operator in declared_by(stem)}
    stems = modules()
    kept = [
        item
        for item in items
        if owner(item.path.stem.removeprefix("test_"), stems) == stem
        or not names_in(item).isdisjoint(names)
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "operator" in metafunc.fixturenames:
        declared = declared_by(metafunc.config.getoption("--operator"))
        metafunc.parametrize("operator", declared, ids=[o.name for o in declared])
    if "dtype" in metafunc.fixturenames:
        metafunc.parametrize("dtype", DTYPES, ids=[str(d).removeprefix("torch.") for d in DTYPES])


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    # Where no test compiles, its import alone would take as long as hundreds of them.
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
