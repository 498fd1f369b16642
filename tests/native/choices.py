"""Choices of the CPU kernels in processes of their own: a process makes them once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

LEVEL, VNNI = "FUSEWHEEL_CPU_ISA", "FUSEWHEEL_CPU_VNNI"
AMX, BF16 = "FUSEWHEEL_CPU_AMX", "FUSEWHEEL_CPU_BF16"


def without(*names: str) -> dict[str, str]:
    """The environment without some variables, or without any that makes a choice."""
    return {
        name: value
        for name, value in os.environ.items()
        if (name not in names if names else not name.startswith("FUSEWHEEL_CPU_"))
    }


def made(environment: dict[str, str]) -> dict[str, str]:
    """What a process with this environment chooses."""
    text = "import fusewheel_cpu, json; print(json.dumps(fusewheel_cpu.choices()))"
    done = subprocess.run(
        [sys.executable, "-c", text], check=True, capture_output=True, text=True, env=environment
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found
