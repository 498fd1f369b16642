"""A terminal of unlimited size: what stands on it after a text with control codes was written."""

from __future__ import annotations

import io
import re

_CODES = re.compile(r"\x1b(?:\[[AK]|[D78])|[\r\n]|[^\x1b\r\n]+")


class Terminal(io.StringIO):
    """A stream that is a terminal; the codes are those that progress is drawn with."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """The lines on the screen, without spaces at their ends."""
        shown: dict[int, str] = {}
        row = column = 0
        kept = (0, 0)
        text = self.getvalue()
        assert "".join(_CODES.findall(text)) == text, "an unknown code"
        for code in _CODES.findall(text):
            match code:
                case "\r":
                    column = 0
                case "\n":
                    row, column = row + 1, 0
                case "\x1bD":
                    row += 1
                case "\x1b[A":
                    row -= 1
                case "\x1b[K":
                    shown[row] = shown.get(row, "")[:column]
                case "\x1b7":
                    kept = row, column
                case "\x1b8":
                    row, column = kept
                case _:
                    old = shown.get(row, "").ljust(column)
                    shown[row] = old[:column] + code + old[column + len(code) :]
                    column += len(code)
        lines = [shown.get(i, "").rstrip() for i in range(max(shown, default=-1) + 1)]
        while lines and not lines[-1]:
            lines.pop()
        return lines
