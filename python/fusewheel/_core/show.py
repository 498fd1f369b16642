"""How a command shows a report: JSON for programs, and for people a text with coloured words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

import click

from fusewheel._core.report import BaseReport

Colours = Mapping[str, str | Callable[[str], str | None]]
"""Colours by a regular expression: that of all its matches, or a function of the matched text."""

_EQUAL = 0.05
"""Ratios that are nearer to 1 than this have no colour."""


def show(report: BaseReport, as_json: bool, colours: Colours | None = None) -> None:
    """Print a report on standard output.

    It has colours on a terminal only, and not there if the environment variable `NO_COLOR` is set.

    Args:
        report: what to print.
        as_json: print JSON and not text.
        colours: of the words of the text; default None, which means no colours.
    """
    text = report.to_json() if as_json else str(report)
    for expression, colour in ({} if as_json else colours or {}).items():
        text = re.sub(expression, _painter(colour), text, flags=re.MULTILINE)
    # click removes the colours where nobody would see them.
    click.echo(text, color=False if os.environ.get("NO_COLOR") else None)


def ratio_colour(text: str) -> str | None:
    """Green for a ratio above 1, red for one below; an `x` may stand behind it."""
    ratio = float(text.rstrip("x"))
    if abs(ratio - 1) < _EQUAL:
        return None
    return "green" if ratio > 1 else "red"


def _painter(colour: str | Callable[[str], str | None]) -> Callable[[re.Match[str]], str]:
    def paint(found: re.Match[str]) -> str:
        chosen = colour if isinstance(colour, str) else colour(found[0])
        return click.style(found[0], fg=chosen) if chosen else found[0]

    return paint
