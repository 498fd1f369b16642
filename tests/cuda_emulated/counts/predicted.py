"""How long the counted launches would take on GPUs that nobody has run them on."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_emulated.counts.counted import Counted

COPY = 0.9
"""The share of the published bandwidth that a plain copy is taken to reach."""
LAUNCH = 3e-6
"""Seconds that a launch is taken to need beside its work."""
PRODUCTS = 0.6
"""The share of the published float32 rate that products are taken to reach."""


@dataclass(frozen=True)
class Gpu:
    """What its maker publishes.

    Attributes:
        name: with the version, where there are several.
        bandwidth: of its memory, in bytes a second.
        float32: additions and multiplications a second, without tensor cores.
        capability: the compute capability.
    """

    name: str
    bandwidth: float
    float32: float
    capability: str


GPUS = (
    Gpu("A100 80GB SXM", 2.039e12, 19.5e12, "80"),
    Gpu("H100 SXM", 3.35e12, 66.9e12, "90"),
    Gpu("B200", 8.0e12, 75.0e12, "100"),
    Gpu("RTX 4090", 1.008e12, 82.6e12, "89"),
)


def seconds(found: Counted, gpu: Gpu) -> float:
    """Time of the case at its full shape: its bytes or its products, whichever takes longer."""
    case = found.case
    bytes_ = found.moved(case.full) / (COPY * gpu.bandwidth)
    products = case.operations(case.full) / (PRODUCTS * gpu.float32)
    return len(found.launches) * LAUNCH + max(bytes_, products)


def share(found: Counted, gpu: Gpu) -> float:
    """How much of that time a copy of the least possible bytes would take."""
    return found.case.minimum(found.case.full) / (COPY * gpu.bandwidth) / seconds(found, gpu)
