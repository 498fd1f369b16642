"""When figures were measured, at which commit and by which command."""

from __future__ import annotations

import datetime
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
# Where files are written does not change the figures.
_FILES = ("--json", "--chart", "--markdown", "--against", "--folder")


def describe(arguments: Sequence[str]) -> dict[str, str]:
    """For `Run.machine`; the commit is left out where the sources have no history."""
    found = {"date": datetime.date.today().isoformat(), "command": command(arguments)}
    git = ("git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude", "*")
    try:
        done = subprocess.run(git, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return found
    return found | {"commit": done.stdout.strip()}


def command(arguments: Sequence[str]) -> str:
    """What one types to measure the same again."""
    kept, rest = [], iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name in _FILES:
            if not equals:
                next(rest, None)  # its value
        else:
            kept.append(argument)
    session = "bench"
    if kept[:2] in (["--table", "compile"], ["--table", "peers"]):  # have sessions of their own
        session, kept = f"bench_{kept[1]}", kept[2:]
    return shlex.join(["nox", "-s", session, *(["--", *kept] if kept else [])])


def line(machine: dict[str, Any]) -> str:
    """All of it as a line of Markdown; empty for a run that did not note it."""
    if "date" not in machine:
        return ""
    at = f" at commit {machine['commit']}" if "commit" in machine else ""
    return f"measured on {machine['date']}{at} by `{machine['command']}`"
