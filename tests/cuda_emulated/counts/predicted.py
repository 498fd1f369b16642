"""How long the counted launches would take on GPUs that nobody has run them on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cuda_emulated.counts.cases import Case

STORED = Path(__file__).with_name("moved.json")

COPY = 0.9
"""The share of the published bandwidth that a plain copy is taken to reach."""
LAUNCH = 3e-6
"""Seconds that a launch is taken to need beside its work."""
PRODUCTS = 0.6
"""The share of the published rate that products are taken to reach."""


@dataclass(frozen=True)
class Gpu:
    """What its maker publishes.

    Attributes:
        name: with the version, where there are several.
        reported: what stands in the name that its driver reports.
        bandwidth: of its memory, in bytes a second.
        float32: additions and multiplications a second, without tensor cores.
        tensor: those of tensor cores, of dense matrices in bfloat16.
        capability: the compute capability.
    """

    name: str
    reported: str
    bandwidth: float
    float32: float
    tensor: float
    capability: str


GPUS = (
    Gpu("A100 80GB SXM", "A100-SXM4-80GB", 2.039e12, 19.5e12, 312e12, "80"),
    Gpu("H100 SXM", "H100 80GB HBM3", 3.35e12, 66.9e12, 989e12, "90"),
    Gpu("B200", "B200", 8.0e12, 75.0e12, 2250e12, "100"),
    Gpu("RTX 4090", "RTX 4090", 1.008e12, 82.6e12, 165e12, "89"),
    Gpu("RTX 5090", "RTX 5090", 1.792e12, 104.8e12, 209.5e12, "120"),
)


@dataclass(frozen=True)
class Moved:
    """What a prediction needs of a case at its full shape.

    Attributes:
        case: which one.
        bytes: that move between the GPU and its memory.
        launches: how many there are.
        uses_tensor_cores: whether they multiply.
    """

    case: Case
    bytes: int
    launches: int
    uses_tensor_cores: bool


def stored(case: Case) -> Moved:
    """What was counted last: `python -m cuda_emulated.counts.page` writes it."""
    return Moved(case, *json.loads(STORED.read_text())[case.name])


def write(everything: list[Moved]) -> None:
    """Keeps what was counted, for machines whose kernels are not emulated."""
    found = {m.case.name: [m.bytes, m.launches, m.uses_tensor_cores] for m in everything}
    lines = (f"  {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in found.items())
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def seconds(moved: Moved, gpu: Gpu) -> float:
    """Time of the case at its full shape: its bytes or its products, whichever takes longer."""
    bytes_ = moved.bytes / (COPY * gpu.bandwidth)
    rate = gpu.tensor if moved.uses_tensor_cores else gpu.float32
    products = moved.case.operations(moved.case.full) / (PRODUCTS * rate)
    return moved.launches * LAUNCH + max(bytes_, products)


def share(moved: Moved, gpu: Gpu) -> float:
    """How much of that time a copy of the least possible bytes would take."""
    case = moved.case
    return case.minimum(case.full) / (COPY * gpu.bandwidth) / seconds(moved, gpu)
