"""Helpers to look at loading from outside: whatever crashes must crash a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from copies import run_beside_torch


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program text in a new interpreter; its folder is empty but for what the test put."""

    def run(text: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        import os

        return subprocess.run(
            [sys.executable, *flags, "-c", text],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **environment},
            timeout=120,
        )

    return run


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program text in a process of its own that has imported torch; its folder is empty."""

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return run_beside_torch(text, tmp_path)

    return run


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of an installed package in another folder: another file, the same SONAME."""

    def copy(package: str) -> Path:
        import importlib

        source = Path(importlib.import_module(package).__file__).parent
        return Path(shutil.copytree(source, tmp_path / "copy" / package))

    return copy
