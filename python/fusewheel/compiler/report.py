"""What the compiler replaced, what it did not, and why."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import torch
from torch.fx import Node

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def source_of(node: Node) -> str:
    """The innermost line outside of torch that a node comes from, as ``path:line``."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    return ":".join(own[-1]) if own else "<unknown>"


@dataclass(frozen=True)
class Replacement:
    """A part of the model that became an operator.

    Attributes:
        pattern: name of the pattern.
        operator: qualified name of the operator, such as ``fusewheel::rms_norm``.
        count: how often it was replaced.
        source: ``path:line`` of the replaced code.
    """

    pattern: str
    operator: str
    count: int
    source: str


@dataclass(frozen=True)
class Refusal:
    """A part of the model that looks like a pattern and was left alone.

    Attributes:
        pattern: name of the pattern.
        count: how often it was found.
        source: ``path:line`` of the code.
        reason: why it was not replaced.
    """

    pattern: str
    count: int
    source: str
    reason: str


@dataclass(frozen=True)
class GraphBreak:
    """A place where Dynamo could not go on with one graph.

    Attributes:
        reason: Dynamo's explanation.
        source: ``path:line`` of the code.
    """

    reason: str
    source: str


@dataclass(frozen=True)
class Report:
    """The result of a rewrite; printing it gives a table.

    Attributes:
        replacements: what was replaced, by pattern and source line.
        refusals: what was recognised and not replaced.
        graphs: number of graphs the model was captured in; 1 is best.
        graph_breaks: why there is more than one.
    """

    replacements: tuple[Replacement, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    graphs: int = 0
    graph_breaks: tuple[GraphBreak, ...] = ()

    def count(self, pattern: str | None = None) -> int:
        """How often one pattern, or any, was replaced."""
        return sum(r.count for r in self.replacements if pattern in (None, r.pattern))

    def counts(self) -> dict[str, int]:
        """Number of replacements by pattern."""
        found: Counter[str] = Counter()
        for item in self.replacements:
            found[item.pattern] += item.count
        return dict(found)

    def to_json(self) -> str:
        """The whole report as JSON."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        rows = [("", "pattern", "count", "source", "")]
        rows += [
            ("replaced", r.pattern, str(r.count), _short(r.source), r.operator)
            for r in self.replacements
        ]
        rows += [
            ("kept", r.pattern, str(r.count), _short(r.source), r.reason) for r in self.refusals
        ]
        if len(rows) == 1:
            rows = [("", "nothing was recognised", "", "", "")]
        rows += [
            ("break", "", "1", _short(b.source), b.reason.partition("\n")[0])
            for b in self.graph_breaks
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        graphs = "1 graph" if self.graphs == 1 else f"{self.graphs} graphs"
        return "\n".join([f"fusewheel: {self.count()} replacements in {graphs}", *lines])


def _short(source: str) -> str:
    return re.split(r"[/\\]", source)[-1]


@dataclass
class Recorder:
    """Collects events while graphs are rewritten and sums them up as a `Report`."""

    _replaced: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _refused: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    graphs: int = 0

    def replaced(self, pattern: str, operator: str, source: str) -> None:
        """Note one replacement."""
        self._replaced[pattern, operator, source] += 1

    def refused(self, pattern: str, source: str, reason: str) -> None:
        """Note one refusal."""
        self._refused[pattern, source, reason] += 1

    def report(self, graph_breaks: Iterable[GraphBreak] = ()) -> Report:
        """Everything that was noted so far."""
        replacements = tuple(
            Replacement(pattern, operator, count, source)
            for (pattern, operator, source), count in self._replaced.items()
        )
        refusals = tuple(
            Refusal(pattern, count, source, reason)
            for (pattern, source, reason), count in self._refused.items()
        )
        return Report(replacements, refusals, self.graphs, tuple(graph_breaks))
