"""The report of `quantize_`."""

from __future__ import annotations

from dataclasses import dataclass

from fusewheel._core.report import BaseReport


@dataclass(frozen=True)
class Swap:
    """A layer that was quantised.

    Attributes:
        name: its name in the model.
        bytes_before: the bytes of its weight and bias.
        bytes_after: the bytes of its codes, scales, zeros and bias.
        calibrated: whether calibration chose its codes.
    """

    name: str
    bytes_before: int
    bytes_after: int
    calibrated: bool


@dataclass(frozen=True)
class Skip:
    """A linear layer that was not quantised.

    Attributes:
        name: its name in the model.
        reason: why it was not quantised.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class QuantizationReport(BaseReport):
    """The result of `quantize_`; printing it gives a summary.

    Attributes:
        kind: the kind that `quantize_` was given.
        swapped: the layers that were quantised.
        skipped: the linear layers that were not quantised.
        bytes_before: the bytes of all parameters and buffers of the model, before.
        bytes_after: the same, after.
    """

    kind: str
    swapped: tuple[Swap, ...]
    skipped: tuple[Skip, ...]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        calibrated = sum(swap.calibrated for swap in self.swapped)
        lines = [
            f"{len(self.swapped)} linear layers in {self.kind}, {calibrated} of them calibrated: "
            f"{self.bytes_before / 2**20:,.1f} MiB -> {self.bytes_after / 2**20:,.1f} MiB"
        ]
        reasons: dict[str, list[str]] = {}
        for skip in self.skipped:
            reasons.setdefault(skip.reason, []).append(skip.name)
        for reason, names in reasons.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            lines.append(f"left alone, {reason}: {', '.join(names[:3])}{more}")
        return "\n".join(lines)
