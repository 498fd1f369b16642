"""The report of a run: as JSON and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fusewheel._core.report import BaseReport, plain
from fusewheel.demo.models import formats
from fusewheel.demo.settings import INT4_INT8, LLAMA_CPP, Settings
from fusewheel.demo.show.checks import Check
from fusewheel.demo.show.results import ModeResult, Row

SCHEMA_VERSION = 2
_WIDTH = 96


@dataclass(frozen=True)
class Report(BaseReport):
    """All results of a run."""

    settings: Settings
    model: dict[str, Any]
    machine: dict[str, Any]
    results: Sequence[ModeResult]
    rows: Sequence[Row]
    checks: Sequence[Check]
    formats: Sequence[formats.Line] = field(default_factory=list)
    text: str | None = None
    left_out: Sequence[str] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """Why the run as a whole failed; empty if it did not."""
        crashed = [
            f"{result.dtype} {result.mode}: {result.error}"
            for result in self.results
            if result.error is not None
        ]
        unequal = [f"{check.dtype} {check.detail}" for check in self.checks if check.failed]
        return crashed + unequal

    def to_dict(self) -> dict[str, Any]:
        """All figures: the attributes, `schema`, `failures`, and the `ratios` of each row."""
        return super().to_dict() | {
            "schema": SCHEMA_VERSION,
            "rows": [plain(row) | {"ratios": self._ratios(row)} for row in self.rows],
            "failures": self.failures,
        }

    def _ratios(self, row: Row) -> dict[str, float | None]:
        baselines = self.settings.baselines
        return {baseline: row.ratio(self.settings.subject, baseline) for baseline in baselines}

    def __str__(self) -> str:
        parts = (heading(self), table(self), formats_table(self), notes(self), verdict(self))
        return "\n\n".join(filter(None, parts))


def heading(report: Report) -> str:
    """What was measured and on what."""
    model, machine = report.model, report.machine
    layers, total = model.get("layers"), model.get("layers_of_model")
    size = f"all {total} layers" if layers == total else f"the first {layers} of {total} layers"
    limit = f", held to {settings.isa} by --isa" if (settings := report.settings).isa else ""
    cpu = (
        f"{machine.get('cpu', 'unknown CPU')} ({machine.get('capability', '?')}{limit}), "
        f"threads: {machine.get('threads', '?')}, cores: {machine.get('cores', '?')}"
    )
    versions = ", ".join(
        f"{name} {machine[name]}" for name in ("torch", "transformers", "python") if name in machine
    )
    lines = [f"{model.get('name', 'model')}, {size}", cpu, versions]
    if "llama_cpp" in machine:
        # A wheel of llama.cpp is compiled for one level of instructions.
        lines.append(f"{LLAMA_CPP} (xllamacpp {machine['xllamacpp']}): {machine['llama_cpp']}")
    return "\n".join(lines)


def table(report: Report) -> str:
    """The table of results, one line per figure, with ratios at the right."""
    settings = report.settings
    failed = {(result.dtype, result.mode) for result in report.results if result.error is not None}
    ratios = [f"vs {baseline}" for baseline in settings.baselines]
    lines = [["", "", "", *settings.modes, *ratios]]
    previous = ""
    for row in report.rows:
        if previous and row.dtype != previous:
            lines.append([])
        cells = [row.dtype if row.dtype != previous else "", row.label, row.unit]
        for mode in settings.modes:
            cells.append(_figure(row.values.get(mode), (row.dtype, mode) in failed))
        for baseline in settings.baselines:
            cells.append(row.ratio_text(settings.subject, baseline) or "-")
        lines.append(cells)
        previous = row.dtype
    return _aligned(lines, left_columns=3) if report.rows else ""


def formats_table(report: Report) -> str:
    """The table of generation in every format of the weights; empty without 4-bit weights."""
    if not report.formats:
        return ""
    return _aligned(formats.cells(report.formats), left_columns=2)


def notes(report: Report) -> str:
    """How to read the table, what differs from the full run, and what was unexpected."""
    settings = report.settings
    at_most = "up to " if settings.time_limit_s else ""
    lines = [
        f"Medians of {at_most}{settings.repeats} repeats ({settings.train_repeats} of the training "
        f"step), the modes taking turns. Greedy decoding of {settings.new_tokens} tokens over a "
        "static cache; training with AdamW, weights and optimizer in the dtype given; compile "
        "times with empty caches.",
    ]
    if settings.baselines:
        lines.append(f"Ratios are those of {settings.subject}: above 1.00x it is better.")
    if any(row.dtype == "fp32" for row in report.rows):
        lines.append(
            "In fp32 most of a step is matrix multiplication, which is the same in every mode."
        )
    lines += _format_notes(report)
    lines.append(
        "Peak memory is the resident memory while the phase runs, after compiling."
        if all(result.peak_is_steady for result in report.results)
        else "Peak memory is that of the whole process, compiling included."
    )
    lines += [f"Left out: {what}." for what in report.left_out]
    lines += _once_notes(report)
    for result in report.results:
        lines += _graph_notes(result)
    lines += _steadiness_notes(report.results)
    return "\n".join(
        textwrap.fill(line, _WIDTH, initial_indent="* ", subsequent_indent="  ") for line in lines
    )


def verdict(report: Report) -> str:
    """The generated text, whether all modes agree, and every failure."""
    lines = []
    if report.text is not None:
        lines += ["Generated text:", textwrap.indent(_wrapped(report.text), "  "), ""]
    for check in report.checks:
        outcome = "FAILED" if check.failed else "ok" if check.equal else "differs (allowed)"
        lines.append(f"{check.dtype} {check.name}: {outcome} - {check.detail}")
    for result in report.results:
        if result.error is not None:
            lines.append(f"FAILED {result.dtype} {result.mode}: {result.error}")
            lines.append(textwrap.indent(result.error_details.rstrip(), "    "))
    fp32_tokens = [c for c in report.checks if c.dtype == "fp32" and c.name == "tokens"]
    if fp32_tokens and all(check.equal for check in fp32_tokens) and not report.failures:
        lines.append("In fp32 the text is identical in all modes.")
    return "\n".join(lines)


def _format_notes(report: Report) -> list[str]:
    if not report.formats:
        return []
    lines = [
        "int4: the file's own blocks, repacked without loss, in fp32 arithmetic; int4-int8: with "
        "activations rounded to int8 on the way. In fusewheel's lines the model is compiled too, "
        "in eager's only its linear layers are fusewheel's. LoRA: adapters on every linear layer "
        "of the decoder, trained in fp32 over the frozen blocks.",
    ]
    fastest = formats.fastest(report.settings, report.formats)
    if fastest:
        lines.append(f"Fastest at decoding: {', '.join(fastest)}.")
    if any(line.mode == LLAMA_CPP for line in report.formats):
        lines.append(
            f"{LLAMA_CPP} runs the same file with as many threads, the same prompt and greedy "
            f"decoding, by its own clock; it rounds activations to int8, hence {INT4_INT8}."
        )
    return lines


def _once_notes(report: Report) -> list[str]:
    once = [
        f"{result.dtype} {result.mode} {phase}"
        for result in report.results
        for phase, found in result.phases.items()
        if found.once
    ]
    limit = f"{report.settings.long_s:g} s"
    return [f"Timed once, because it takes more than {limit}: {', '.join(once)}."] if once else []


def _graph_notes(result: ModeResult) -> list[str]:
    name = f"{result.dtype} {result.mode}"
    lines = []
    for phase, found in result.phases.items():
        if result.mode != "eager" and (found.graphs != 1 or found.graph_breaks):
            lines.append(
                f"{name}, {phase}: {found.graphs} graphs, {found.graph_breaks} graph breaks"
            )
        if found.replacements:
            counts = ", ".join(
                f"{count} x {operator}" for operator, count in found.replacements.items()
            )
            lines.append(f"{name}, {phase}: replaced {counts}")
    return lines


def _steadiness_notes(results: Sequence[ModeResult]) -> list[str]:
    spreads = [
        f"{result.dtype} {result.mode} {phase} {spread:.1f}x"
        for result in results
        for phase, spread in result.unsteady().items()
    ]
    if not spreads:
        return []
    return [
        "UNSTEADY, marked by ~: other programs disturbed the timings, so do not trust these ratios "
        f"(slowest against fastest repeat: {', '.join(spreads)})."
    ]


def _figure(value: float | None, failed: bool) -> str:
    if value is None:
        return "failed" if failed else "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.fill(line, _WIDTH - 2) for line in text.strip().splitlines())


def _aligned(lines: Sequence[Sequence[str]], left_columns: int) -> str:
    """Columns of equal width, the first few aligned to the left."""
    full = [line for line in lines if line]
    widths = [max(len(cell) for cell in column) for column in zip(*full, strict=True)]
    aligned = [
        "  ".join(
            cell.ljust(width) if index < left_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=False))
        ).rstrip()
        for line in lines
    ]
    aligned.insert(1, "-" * max(len(line) for line in aligned))
    return "\n".join(aligned)
