"""What became of a model's linear layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Swap:
    """A layer that is quantised now.

    Attributes:
        name: of the layer in the model.
        bytes_before: of its weight and bias.
        bytes_after: of its codes, scales, zeros and bias.
        calibrated: whether its scales were fitted to calibration data.
    """

    name: str
    bytes_before: int
    bytes_after: int
    calibrated: bool


@dataclass(frozen=True)
class Skip:
    """A linear layer that was left alone.

    Attributes:
        name: of the layer in the model.
        reason: why.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class QuantizationReport:
    """The result of `quantize_`; printing it gives a summary.

    Attributes:
        kind: `"int4"` or `"int8"`.
        swapped: the layers that were quantised.
        skipped: the linear layers that were not.
        bytes_before: of all parameters and buffers of the model.
        bytes_after: likewise, afterwards.
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
