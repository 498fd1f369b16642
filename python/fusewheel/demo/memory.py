"""The peak resident memory of some phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusewheel._core.memory import peak_bytes, reset_peak


def of_phases(
    run: Callable[[str], dict[str, Any]], phases: Sequence[str], long_s: float
) -> dict[str, Any]:
    """Run the phases; returns the peak, and the seconds of phases that took more than `long_s`."""
    steady = reset_peak()
    seconds = {phase: run(phase)["seconds"] for phase in phases}
    long = {phase: taken for phase, taken in seconds.items() if taken > long_s}
    return {"peak_bytes": peak_bytes(), "steady": steady, "long": long}
