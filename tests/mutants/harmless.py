"""Which mutants no test has to find, by the rules."""

from __future__ import annotations

import re

from mutants.mutant import Mutant
from mutants.rules import RULES


def header(text: str, offset: int) -> str:
    """The first line of the function around: the last one before that is indented less."""
    lines = text[:offset].splitlines()
    for line in reversed(lines):
        if re.match(r"[A-Za-z_]", line):
            return line
    return ""


def reason(mutant: Mutant) -> str | None:
    """Why no test has to find it; None if one has to."""
    start = mutant.text.rfind("\n", 0, mutant.change.start) + 1
    end = mutant.text.find("\n", mutant.change.start)
    line = mutant.text[start:end]
    inside = header(mutant.text, mutant.change.start)
    for rule in RULES:
        if (
            mutant.kind in rule.kinds
            and re.search(rule.line, line)
            and re.search(rule.inside, inside)
            and (not rule.old or re.fullmatch(rule.old, mutant.old))
            and (not rule.new or re.fullmatch(rule.new, mutant.change.new))
        ):
            return rule.reason
    return None
