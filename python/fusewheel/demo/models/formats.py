"""The second table: one line per format of the weights and per program that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewheel.demo.settings import INT4_INT8, LLAMA_CPP, Settings
from fusewheel.demo.show.results import ModeResult


@dataclass(frozen=True)
class Line:
    """The generation, and the training step of adapters, of one worker."""

    dtype: str
    mode: str
    prefill_ms: float | None
    tokens_per_s: float | None
    lora_ms: float | None
    peak_mib: float | None
    # Against the reference mode in fp32 and against llama.cpp: how many times faster it decodes.
    speed_up: dict[str, float | None]
    unsteady: bool = False
    failed: bool = False


def lines(settings: Settings, results: Sequence[ModeResult]) -> list[Line]:
    """Every mode of every format; none in a run that has no 4-bit weights."""
    if len(settings.floating) == len(settings.dtypes):
        return []
    baselines = {
        f"fp32 {settings.reference}": ("fp32", settings.reference),
        LLAMA_CPP: (INT4_INT8, LLAMA_CPP),
    }
    speeds = {(result.dtype, result.mode): _tokens_per_s(settings, result) for result in results}
    return [
        Line(
            dtype=result.dtype,
            mode=result.mode,
            prefill_ms=_milliseconds(result, "prefill"),
            tokens_per_s=speeds[result.dtype, result.mode],
            lora_ms=_milliseconds(result, "lora"),
            peak_mib=_mebibytes(result.peak_bytes.get("generation")),
            speed_up={
                name: _ratio(speeds[result.dtype, result.mode], speeds.get(key))
                for name, key in baselines.items()
                if key in speeds
            },
            unsteady="decode" in result.unsteady(),
            failed=result.error is not None,
        )
        for result in results
    ]


def fastest(settings: Settings, found: Sequence[Line]) -> list[str]:
    """Which mode decodes fastest in every format, in words."""
    text = []
    for dtype in dict.fromkeys(line.dtype for line in found):
        ours = [line for line in found if line.dtype == dtype and line.tokens_per_s is not None]
        ours = [line for line in ours if line.mode in settings.modes]
        if len(ours) > 1:
            text.append(f"{dtype} {max(ours, key=lambda line: line.tokens_per_s or 0).mode}")
    return text


def cells(found: Sequence[Line]) -> list[list[str]]:
    """The table as text, a header first."""
    names = list(found[0].speed_up)
    trains = any(line.lora_ms is not None for line in found)
    header = ["", "", "prefill ms", "tokens/s", *(f"vs {name}" for name in names), "peak MiB"]
    table = [[*header, "LoRA step ms"] if trains else header]
    previous = ""
    for line in found:
        failed = "failed" if line.failed else "-"
        table.append(
            [
                line.dtype if line.dtype != previous else "",
                line.mode,
                _figure(line.prefill_ms) or failed,
                _figure(line.tokens_per_s) or failed,
                *(_times(line.speed_up[name], line.unsteady) for name in names),
                _figure(line.peak_mib) or failed,
                *([_figure(line.lora_ms) or "-"] if trains else []),
            ]
        )
        previous = line.dtype
    return table


def _tokens_per_s(settings: Settings, result: ModeResult) -> float | None:
    seconds = result.median_s("decode")
    # The first of the tokens comes from the prefill.
    return (settings.new_tokens - 1) / seconds if seconds else None


def _milliseconds(result: ModeResult, phase: str) -> float | None:
    seconds = result.median_s(phase)
    return None if seconds is None else seconds * 1e3


def _mebibytes(count: int | None) -> float | None:
    return None if count is None else count / 2**20


def _ratio(mine: float | None, theirs: float | None) -> float | None:
    return mine / theirs if mine and theirs else None


def _times(ratio: float | None, unsteady: bool) -> str:
    return "-" if ratio is None else f"{'~' if unsteady else ''}{ratio:.2f}x"


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
