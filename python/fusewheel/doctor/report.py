"""The report of an examination, as text, Markdown and JSON."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from fusewheel._core.report import BaseReport
from fusewheel.doctor.outcome import Outcome, Status

MARKS = {
    Status.WORKS: "yes",
    Status.REFUSES: "refuses",
    Status.FAILS: "**no**",
    Status.NOT_APPLICABLE: "-",
}


@dataclass(frozen=True)
class Report(BaseReport):
    """What the doctor found.

    Attributes:
        subject: the operator's name.
        outcomes: one for each column.
    """

    subject: str
    outcomes: tuple[Outcome, ...]

    def of(self, status: Status) -> tuple[Outcome, ...]:
        """The outcomes with that status."""
        return tuple(o for o in self.outcomes if o.status is status)

    @property
    def healthy(self) -> bool:
        """Whether nothing fails."""
        return not self.of(Status.FAILS)

    @property
    def traps(self) -> tuple[str, ...]:
        """The names of all mistakes that were found, without repetition."""
        return tuple(dict.fromkeys(o.trap for o in self.of(Status.FAILS)))

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.of(s))} {s.value}" for s in Status)
        width = max(len(o.column) for o in self.outcomes)
        lines = [f"{self.subject}: {counts}", ""]
        theme = ""
        for outcome in self.outcomes:
            heading = outcome.theme if outcome.theme != theme else ""
            theme = outcome.theme
            short = outcome.trap or outcome.reason.split("\n")[0]
            line = f"{heading:12} {outcome.column:{width}}  {outcome.status.value:15} {short}"
            lines.append(line.rstrip()[:110])
        for outcome in self.of(Status.FAILS):
            lines += ["", f"{outcome.column}: {outcome.trap}"]
            for label, text in (
                ("input", outcome.arguments),
                ("error", outcome.reason),
                ("mend", outcome.remedy),
            ):
                lines += _paragraph(label, text)
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The attributes `subject`, `outcomes` (a list of dictionaries) and `healthy`."""
        return super().to_dict() | {"healthy": self.healthy}

    def markdown(self) -> str:
        """A table, one line for each column."""
        lines = [f"## {self.subject}", "", "| theme | column | outcome | |", "|---|---|---|---|"]
        for o in self.outcomes:
            words = "; ".join(filter(None, (o.trap, " ".join(o.reason.split())[:200], o.remedy)))
            words = words.replace("|", "\\|")
            lines.append(f"| {o.theme} | {o.column} | {o.status.value} | {words} |")
        return "\n".join(lines) + "\n"


def _paragraph(label: str, text: str) -> list[str]:
    found: list[str] = []
    for line in text.splitlines():
        found += textwrap.wrap(line, 90) if line.strip() else []
    return [f"  {label if i == 0 else '':6} {line}" for i, line in enumerate(found[:14])]
