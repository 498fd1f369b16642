"""Choices of the CPU kernels in processes of their own: a process makes them once."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from copies import run_beside_torch

LEVEL, VNNI = "FUSEWHEEL_CPU_ISA", "FUSEWHEEL_CPU_VNNI"
AMX, BF16 = "FUSEWHEEL_CPU_AMX", "FUSEWHEEL_CPU_BF16"


def without(*names: str) -> dict[str, str]:
    """The environment without some variables, or without any that makes a choice."""
    return {
        name: value
        for name, value in os.environ.items()
        if (name not in names if names else not name.startswith("FUSEWHEEL_CPU_"))
    }


def said(text: str, environment: dict[str, str]) -> str:
    """What a program prints in an environment; the kernels are loaded after that is set."""
    setting = f"import os\nos.environ.clear()\nos.environ.update({environment!r})\n"
    with tempfile.TemporaryDirectory() as folder:
        done = run_beside_torch(setting + text, Path(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


def made(environment: dict[str, str]) -> dict[str, str]:
    """What a process with this environment chooses."""
    text = "import fusewheel_cpu, json; print(json.dumps(fusewheel_cpu.choices()))"
    found: dict[str, str] = json.loads(said(text, environment))
    return found
