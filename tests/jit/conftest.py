"""A rewrite that raises fails the test; kinds of operators in a graph."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fusewheel import jit
from fusewheel.jit.support import require_torchscript

WITHOUT_TORCHSCRIPT = ("test_python_without_torchscript", "test_importing_it_is_light")


@pytest.fixture(autouse=True)
def _supported(request: pytest.FixtureRequest) -> None:
    if request.node.name not in WITHOUT_TORCHSCRIPT:
        try:
            require_torchscript()
        except jit.TorchScriptError as error:
            pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FUSEWHEEL_COMPILER_STRICT", "1")
    with torch.no_grad():
        yield


@pytest.fixture
def off_after() -> Iterator[None]:
    """Nothing that a test enables stays on."""
    yield
    jit.disable()


@pytest.fixture
def fused_in() -> Callable[[Any], dict[str, int]]:
    """How often each of fusewheel's operators stands in a module."""

    def count(module: torch.jit.ScriptModule) -> dict[str, int]:
        nodes = module.inlined_graph.findAllNodes
        found = {name: len(nodes(f"fusewheel::{name}")) for name in _names()}
        return {name: number for name, number in found.items() if number}

    return count


def _names() -> list[str]:
    from fusewheel import ops

    return [operator.name for operator in ops.operators()]


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[..., str]:
    """Runs a text in a new interpreter and returns what it prints; a crash fails the test."""

    def run(text: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", text],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **environment},
            timeout=300,
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run
