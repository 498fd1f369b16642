"""The figures of a run, and what is computed from them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fusewheel.demo.settings import Settings

GENERATION = ("prefill", "decode")
TRAINING = ("train",)
LORA = ("lora",)

# A spread of the repeats beyond this factor means that the machine was disturbed.
STEADY = 1.5


@dataclass
class PhaseResult:
    """One phase of one worker."""

    first_s: float
    graphs: int
    graph_breaks: int
    # What the fusewheel backend replaced, if it says so.
    replacements: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    # It was timed once, because it takes so long.
    once: bool = False

    @property
    def median_s(self) -> float | None:
        """The median of the timed repeats."""
        return statistics.median(self.seconds) if self.seconds else None


@dataclass
class ModeResult:
    """Everything one worker measured."""

    dtype: str
    mode: str
    phases: dict[str, PhaseResult] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    # False if the peak could only be read for the whole life of the process.
    peak_is_steady: bool = True
    # The tokens of the first decode burst, and whether all later bursts gave the same.
    tokens: list[int] = field(default_factory=list)
    tokens_repeat: bool = True
    losses: list[float] = field(default_factory=list)
    # Largest errors of the logits against float64, for 4-bit weights: this mode's and eager fp32's.
    logits_error: float | None = None
    eager_logits_error: float | None = None
    error: str | None = None
    error_details: str = ""

    def median_s(self, phase: str) -> float | None:
        """The median seconds of a phase, if it was timed."""
        result = self.phases.get(phase)
        return None if result is None else result.median_s

    def unsteady(self) -> dict[str, float]:
        """For phases whose repeats differ widely: the slowest time divided by the fastest."""
        spreads = {
            phase: max(found.seconds) / min(found.seconds)
            for phase, found in self.phases.items()
            if found.seconds
        }
        return {phase: spread for phase, spread in spreads.items() if spread > STEADY}

    def compile_s(self, phases: Sequence[str]) -> float | None:
        """The seconds that the first runs took longer than the median; None in eager mode."""
        if self.mode == "eager":
            return None
        total = 0.0
        for phase in phases:
            result = self.phases.get(phase)
            if result is None or result.median_s is None:
                return None
            total += max(0.0, result.first_s - result.median_s)
        return total


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure in every mode."""

    dtype: str
    label: str
    unit: str
    values: dict[str, float | None]
    higher_is_better: bool = False
    # The key of the phase in the chart; None keeps the row out of it.
    phase: str | None = None
    # The modes whose repeats differed widely.
    unsteady: tuple[str, ...] = ()

    def ratio_text(self, subject: str, baseline: str) -> str | None:
        """The ratio as the table and the chart show it, with a tilde if it is not to be trusted."""
        ratio = self.ratio(subject, baseline)
        if ratio is None:
            return None
        return f"{'~' if {subject, baseline} & set(self.unsteady) else ''}{ratio:.2f}x"

    def ratio(self, subject: str, baseline: str) -> float | None:
        """How many times better the subject is than the baseline."""
        mine, theirs = self.values.get(subject), self.values.get(baseline)
        if not mine or not theirs:
            return None
        return mine / theirs if self.higher_is_better else theirs / mine


@dataclass(frozen=True)
class Labels:
    """The sizes that appear in the labels of the table."""

    prompt_tokens: int
    batch: int
    sequence: int


def rows(settings: Settings, results: Sequence[ModeResult], labels: Labels) -> list[Row]:
    """The lines of the table."""
    table: list[Row] = []
    for dtype in settings.floating:
        of_dtype = [result for result in results if result.dtype == dtype]

        def add(
            label: str,
            unit: str,
            value: Callable[[ModeResult], float | None],
            *,
            higher_is_better: bool = False,
            phase: str | None = None,
            dtype: str = dtype,
            of_dtype: list[ModeResult] = of_dtype,
        ) -> None:
            values = {result.mode: value(result) for result in of_dtype}
            unsteady = tuple(result.mode for result in of_dtype if phase in result.unsteady())
            table.append(Row(dtype, label, unit, values, higher_is_better, phase, unsteady))

        add(
            f"prefill, {labels.prompt_tokens} tokens",
            "ms",
            lambda result: _scaled(result.median_s("prefill"), 1e3),
            phase="prefill",
        )
        add(
            "decode",
            "tokens/s",
            lambda result: _per_second(settings.new_tokens - 1, result.median_s("decode")),
            higher_is_better=True,
            phase="decode",
        )
        add(
            f"training step, {labels.batch} x {labels.sequence}",
            "ms",
            lambda result: _scaled(result.median_s("train"), 1e3),
            phase="train",
        )
        for name in ("generation", "training"):
            add(
                f"peak memory, {name}",
                "MiB",
                lambda result, name=name: _scaled(result.peak_bytes.get(name), 2.0**-20),  # type: ignore[misc]
            )
        add("compile, generation", "s", lambda result: result.compile_s(GENERATION))
        add("compile, training", "s", lambda result: result.compile_s(TRAINING))
    return table


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _per_second(count: int, seconds: float | None) -> float | None:
    return count / seconds if seconds else None
