"""The page docs/custom-operators.md: what was found, and programs that show it."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FINDINGS = Path(__file__).parent / "findings"
STATUSES = ("works", "refuses", "fails", "not applicable")
HEAD = Path(__file__).with_name("head.md")


@dataclass(frozen=True)
class Finding:
    """A finding, with the program that shows it.

    Attributes:
        path: the file `findings/PACKAGE__NAME.py`.
        title: the first line of its docstring.
        text: the rest of it.
        program: what follows.
    """

    path: Path
    title: str
    text: str
    program: str

    @property
    def package(self) -> str:
        """The name of the package that it is about."""
        return self.path.stem.partition("__")[0].replace("_", "-")


def findings(folder: Path = FINDINGS) -> list[Finding]:
    """All of them, by the names of their files."""
    found = []
    for path in sorted(folder.glob("*__*.py")):
        source = path.read_text(encoding="utf-8")
        title, _, text = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
        program = source.split('"""', 2)[2].strip("\n")
        found.append(Finding(path, title.rstrip("."), text.strip(), program))
    return found


def printed(finding: Finding) -> str:
    """What its program prints, and how it ends if it ends badly."""
    command = [sys.executable, "-W", "ignore", str(finding.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    lines = done.stdout.rstrip("\n").splitlines()
    if done.returncode < 0:
        lines.append(f"(the process ends with {signal.Signals(-done.returncode).name})")
    elif done.returncode:
        lines.append((done.stderr.strip().splitlines() or ["(no message)"])[-1])
    return "\n".join(lines)


def shown(finding: Finding, output: str) -> str:
    """The finding as it stands on the page."""
    parts = [f"### {finding.title}", finding.text, f"```python\n{finding.program}\n```"]
    return "\n\n".join(filter(None, [*parts, f"```text\n{output}\n```"]))


def section(name: str, found: dict[str, Any]) -> str:
    """What was found in one package; empty for a package that cannot be loaded."""
    if "error" in found:
        return ""
    lines = [f"## {name} {found['version']}", "", *_table(found["reports"])]
    return "\n".join(lines)


def _table(reports: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| operator | works | refuses | fails | mistakes, and the uses that each one breaks |"
    yield "|---|---|---|---|---|"
    for report in reports:
        outcomes = report["outcomes"]
        count = [sum(o["status"] == status for o in outcomes) for status in STATUSES[:3]]
        numbers = " | ".join(map(str, count))
        yield f"| `{report['subject']}` | {numbers} | {_mistakes(outcomes)} |"


def _mistakes(outcomes: Sequence[dict[str, Any]]) -> str:
    columns: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome["status"] == "fails":
            columns.setdefault(outcome["trap"], []).append(outcome["column"])
    return "; ".join(f"{trap}: {', '.join(names)}" for trap, names in columns.items())


def overview(every: dict[str, dict[str, Any]], count: dict[str, int], origin: str) -> str:
    """The packages in one table, and those that cannot be loaded in another."""
    lines = [f"Run with {origin}.", ""]
    lines += ["| package | operators | uses that work | refuse | fail | findings |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, found in every.items():
        if "reports" in found:
            outcomes = [o for report in found["reports"] for o in report["outcomes"]]
            number = [sum(o["status"] == s for o in outcomes) for s in STATUSES[:3]]
            cells = (len(found["reports"]), *number, count.get(name, 0))
            anchor = re.sub(r"[^\w\- ]", "", f"{name} {found['version']}").replace(" ", "-")
            cells = " | ".join(map(str, cells))
            lines.append(f"| [{name} {found['version']}](#{anchor}) | {cells} |")
    absent = {name: found for name, found in every.items() if "error" in found}
    if absent:
        lines += ["", "These cannot be loaded beside this PyTorch:", ""]
        lines += ["| package | error |", "|---|---|"]
        for name, found in absent.items():
            words = " ".join(found["error"].split()).replace("|", "\\|")
            words = re.sub(r"/\S*site-packages/", "", words)
            title = f"{name} {found['version']}".strip()
            lines.append(f"| {title} | `{words[:300]}` |")
    return "\n".join(lines)
