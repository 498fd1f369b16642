"""What the compiler replaced, what it did not, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fusewheel._core.report import BaseReport
from fusewheel.compiler.ir.source import Line


@dataclass(frozen=True)
class Replacement:
    """A part of the model that was replaced by an operator.

    Attributes:
        pattern: the name of the pattern.
        operator: the qualified name of the operator, such as ``fusewheel::rms_norm``.
        count: how often it was replaced.
        source: ``path:line`` of the replaced code.
        code: the text of that line.
        bytes_saved: an estimate for the forward pass, for all replacements together: the bytes that
            the replaced operations would read and write if each ran alone, minus those of the
            operator, see `fusewheel.compiler.cost.traffic`. None if a size is not known.
    """

    pattern: str
    operator: str
    count: int
    source: str
    code: str = ""
    bytes_saved: int | None = None


@dataclass(frozen=True)
class Refusal:
    """A part of the model that was recognised and left alone.

    Attributes:
        pattern: the name of the pattern.
        count: how often it was found.
        source: ``path:line`` of the code.
        reason: why it was not replaced.
        code: the text of the line.
    """

    pattern: str
    count: int
    source: str
    reason: str
    code: str = ""


@dataclass(frozen=True)
class AttentionCall:
    """A call of PyTorch's attention in the rewritten graph.

    Attributes:
        count: how often it is called.
        source: ``path:line`` of the code.
        mask: what its mask hides: ``none``, ``causal``, ``sliding window [-7, 0]`` (the bounds of
            key position minus query position), ``padding``, ``arbitrary`` or several of these.
        shapes: the shapes of query and keys, in words.
        code: the text of the line.
    """

    count: int
    source: str
    mask: str
    shapes: str
    code: str = ""


@dataclass(frozen=True)
class ProgramPart:
    """A part of a graph that runs as one program with ``options={"inner": "engine"}``.

    Attributes:
        steps: how many operators it calls.
        source: ``path:line`` of the code that its first step comes from.
        end: ``path:line`` of what ends it; of its last step where the graph ends.
        reason: why it ends there, or why it is no program.
        lowered: whether it is a program.
        code: the text of the line that ends it.
    """

    steps: int
    source: str
    end: str
    reason: str
    lowered: bool = True
    code: str = ""


@dataclass(frozen=True)
class GraphBreak:
    """A place where Dynamo had to end one graph and start another.

    Attributes:
        reason: Dynamo's explanation.
        source: ``path:line`` of the code.
        code: the text of the line.
    """

    reason: str
    source: str
    code: str = ""


@dataclass(frozen=True)
class Report(BaseReport):
    """The result of a rewrite; printing it gives a table.

    Attributes:
        replacements: what was replaced, by pattern and source line.
        refusals: what was recognised and not replaced.
        graphs: the number of graphs that the model was captured in; 1 is best.
        graph_breaks: the reasons why there is more than one graph.
        attentions: the calls of PyTorch's attention, with their masks.
        programs: the parts that the engine would run, in order.
    """

    replacements: tuple[Replacement, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    graphs: int = 0
    graph_breaks: tuple[GraphBreak, ...] = ()
    attentions: tuple[AttentionCall, ...] = ()
    programs: tuple[ProgramPart, ...] = ()

    def count(self, pattern: str | None = None) -> int:
        """The number of replacements of one pattern, or of all if `pattern` is None (default)."""
        return sum(r.count for r in self.replacements if pattern in (None, r.pattern))

    def counts(self) -> dict[str, int]:
        """The number of replacements of each pattern."""
        found: Counter[str] = Counter()
        for item in self.replacements:
            found[item.pattern] += item.count
        return dict(found)

    @property
    def bytes_saved(self) -> int:
        """The sum of the estimates of all replacements that have one, see `Replacement`."""
        return sum(r.bytes_saved or 0 for r in self.replacements)

    def to_dict(self) -> dict[str, Any]:
        """The whole report in dictionaries and lists.

        The keys are ``graphs``, ``replaced`` and ``bytes_saved`` (totals) and ``replacements``,
        ``refusals``, ``attentions``, ``graph_breaks`` and ``programs``: lists of objects whose keys
        are the attributes of `Replacement`, `Refusal`, `AttentionCall`, `GraphBreak` and
        `ProgramPart`.
        """
        return super().to_dict() | {"replaced": self.count(), "bytes_saved": self.bytes_saved}

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("", "pattern", "count", "saved", "source", "")]
        codes = [""]
        for r in self.replacements:
            saved = size_text(r.bytes_saved)
            row = ("replaced", r.pattern, str(r.count), saved, _short(r.source), r.operator)
            rows.append(row)
            codes.append(r.code)
        for k in self.refusals:
            rows.append(("kept", k.pattern, str(k.count), "", _short(k.source), k.reason))
            codes.append(k.code)
        for a in self.attentions:
            note = f"mask: {a.mask}; {a.shapes}"
            rows.append(("left", "attention", str(a.count), "", _short(a.source), note))
            codes.append(a.code)
        for p in self.programs:
            what = "program" if p.lowered else "no program"
            note = f"ends at {_short(p.end)}: {p.reason}"
            rows.append((what, f"{p.steps} steps", "1", "", _short(p.source), note))
            codes.append("")
        if len(rows) == 1:
            rows = [("", "nothing was recognised", "", "", "", "")]
        for b in self.graph_breaks:
            rows.append(("break", "", "1", "", _short(b.source), b.reason.partition("\n")[0]))
            codes.append(b.code)
        graphs = "1 graph" if self.graphs == 1 else f"{self.graphs} graphs"
        saved = f", about {size_text(self.bytes_saved)} of memory traffic less"
        head = f"fusewheel: {self.count()} replacements in {graphs}"
        return "\n".join([head + (saved if self.bytes_saved > 0 else ""), *_table(rows, codes)])


def _table(rows: list[tuple[str, ...]], codes: list[str]) -> list[str]:
    """Aligned columns; below a row the line of code it is about."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row, code in zip(rows, codes, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
        if code:
            lines.append(" " * (widths[0] + 2) + "| " + code)
    return lines


def size_text(size: int | None) -> str:
    """A number of bytes with its unit; empty if it is not known."""
    if size is None:
        return ""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"


def _short(source: str) -> str:
    return re.split(r"[/\\]", source)[-1]


@dataclass
class Recorder:
    """Collects events while graphs are rewritten and makes a `Report` of them.

    Attributes:
        counts_only: whether only `Report.counts` will be asked for. Then the bytes that a
            replacement saves are not estimated, and calls of attention are not noted, which means
            reading their masks.
        graphs: the number of graphs.
    """

    counts_only: bool = False
    _replaced: Counter[tuple[str, str, Line]] = field(default_factory=Counter)
    _saved: dict[tuple[str, str, Line], int | None] = field(default_factory=dict)
    _refused: Counter[tuple[str, Line, str]] = field(default_factory=Counter)
    _attentions: Counter[tuple[Line, str, str]] = field(default_factory=Counter)
    _programs: list[ProgramPart] = field(default_factory=list)
    graphs: int = 0

    def attention(self, line: Line, mask: str, shapes: str) -> None:
        """Note one call of PyTorch's attention."""
        self._attentions[line, mask, shapes] += 1

    def program(self, part: ProgramPart) -> None:
        """Note a part that the engine would run."""
        self._programs.append(part)

    def replaced(self, pattern: str, operator: str, line: Line, saved: int | None) -> None:
        """Note one replacement and the bytes that it saves, None if not known."""
        key = pattern, operator, line
        known = self._saved.get(key, 0)
        self._saved[key] = None if known is None or saved is None else known + saved
        self._replaced[key] += 1

    def refused(self, pattern: str, line: Line, reason: str) -> None:
        """Note one refusal."""
        self._refused[pattern, line, reason] += 1

    def report(self, graph_breaks: Iterable[GraphBreak] = ()) -> Report:
        """Everything that was noted so far."""
        replacements = tuple(
            Replacement(pattern, operator, count, *line, self._saved[pattern, operator, line])
            for (pattern, operator, line), count in self._replaced.items()
        )
        refusals = tuple(
            Refusal(pattern, count, line.source, reason, line.code)
            for (pattern, line, reason), count in self._refused.items()
        )
        attentions = tuple(
            AttentionCall(count, line.source, mask, shapes, line.code)
            for (line, mask, shapes), count in self._attentions.items()
        )
        return Report(
            *(replacements, refusals, self.graphs, tuple(graph_breaks), attentions),
            programs=tuple(self._programs),
        )
