"""What the figures of a run depend on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fusewheel
from fusewheel.demo import isa
from fusewheel.demo.machine import hardware


def describe(threads: Sequence[int], level: str | None) -> dict[str, Any]:
    """The processor, the instructions in use and the versions."""
    return hardware() | {
        "threads": list(threads),
        "isa": level,
        "kernels": _kernels(),
        "caches": _caches(),
        "fusewheel": fusewheel.__version__,
    }


def heading(machine: dict[str, Any]) -> str:
    """The same in two lines."""
    limit = f", held to {machine['isa']} by --isa" if machine["isa"] else ""
    caches = ", ".join(f"{name} {size}" for name, size in machine["caches"].items())
    return (
        f"{machine['cpu']} ({machine['capability']}{limit}), cores: {machine['cores']}, "
        f"threads: {', '.join(map(str, machine['threads']))}"
        + (f", caches: {caches}" if caches else "")
        + f"\ntorch {machine['torch']}, python {machine['python']}, "
        f"fusewheel {machine['fusewheel']} (kernels {machine['kernels']})"
    )


def environment(level: str | None) -> dict[str, str]:
    """What holds the libraries to a level."""
    return isa.limits(level)


def _kernels() -> str:
    """The level that fusewheel's CPU kernels chose."""
    import fusewheel_cpu

    return fusewheel_cpu.choices()["FUSEWHEEL_CPU_ISA"]


def _caches() -> dict[str, str]:
    """Sizes of the data caches of the first core, where Linux says them."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size = (
            (folder / name).read_text().strip() for name in ("type", "level", "size")
        )
        if kind != "Instruction":
            found[f"L{level}"] = size
    return found
