"""Random numbers are new in every run of pytest, and the same again with `--seed`.

Before every test torch, numpy and random are seeded from one number and the test's name, so that a
test has the same numbers alone, after others, and in any process of pytest-xdist.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import sys
import zlib
from pathlib import Path

import pytest

# PyTorch asks once, when it is imported. Threads that wait in a loop take processors that others
# need: on two busy ones, tests of products took 42 s of processor time, and take 7.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Tests of the compiler compile, whatever an earlier process has kept.
os.environ["FUSEWHEEL_CACHE"] = "0"

FILE = pytest.StashKey[Path]()
"""The file of the test that ran last."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, metavar="N", help="of all random numbers; default: a new one"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        shared = getattr(config, "workerinput", {})
        config.option.seed = shared.get("seed", secrets.randbelow(2**32))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """pytest-xdist's: tells a worker the number."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def told(config: pytest.Config) -> str:
    return f"seed: {config.option.seed}; again with --seed {config.option.seed}"


def pytest_report_header(config: pytest.Config) -> str:
    return told(config)


def pytest_terminal_summary(terminalreporter, exitstatus: int, config: pytest.Config) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.write_line(told(config))


def _only_what_is_tested() -> None:
    """Leaves out what PyTorch does at each compile and each seed for nobody to read.

    It writes every step and every graph of a compile as text for the logger of traces, if that has
    a handler; pytest gives its own to all loggers that hand nothing on. It empties the processor's
    caches to time the guards for its log. And for each kind of device that is not there it keeps
    the stack of every call of `torch.manual_seed`.
    """
    import torch

    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    for handler in [h for h in trace.handlers if type(h).__module__ == "_pytest.logging"]:
        trace.removeHandler(handler)
    if guards := sys.modules.get("torch._dynamo.guards"):
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_initialized() and not device.is_available():
            device.manual_seed_all = lambda seed: None  # type: ignore[assignment]


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    import numpy
    import torch

    if item.config.stash.get(FILE, None) != item.path:
        item.config.stash[FILE] = item.path
        # What earlier files imported stays. No later collection has to look at it again, which
        # takes half a second for PyTorch's own objects, and tests of memory collect often.
        gc.collect()
        gc.freeze()
    _only_what_is_tested()

    seed = zlib.crc32(f"{item.config.option.seed} {item.nodeid}".encode())
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)
