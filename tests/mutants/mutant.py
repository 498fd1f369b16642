"""What a mutant is: one source file with one small change."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Change:
    """A piece of a text, and what stands there instead.

    Attributes:
        start: the offset of its first character.
        end: the offset after its last character.
        new: the other text.
    """

    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Mutant:
    """A file and a change of it.

    Attributes:
        kind: what the file is: "cpu", "cuda", "patterns" or "columns".
        path: the file, relative to the repository.
        text: the file as it is.
        change: what is broken.
    """

    kind: str
    path: Path
    text: str
    change: Change

    @property
    def line(self) -> int:
        """The number of the first changed line, from 1."""
        return self.text.count("\n", 0, self.change.start) + 1

    @property
    def mutated(self) -> str:
        """The file with the change."""
        return self.text[: self.change.start] + self.change.new + self.text[self.change.end :]

    @property
    def old(self) -> str:
        """The text that is replaced."""
        return self.text[self.change.start : self.change.end]

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) or "nothing" for text in (self.old, self.change.new))
        return f"{self.path}:{self.line}: {old}  ->  {new}"

    def diff(self) -> str:
        """The change as a unified diff."""
        before, after = (text.splitlines(keepends=True) for text in (self.text, self.mutated))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}"))
