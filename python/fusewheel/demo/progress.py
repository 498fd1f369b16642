"""Shows the progress of the demo: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class Step:
    """One step under way."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._label = label
        self._start = time.monotonic()
        self.note = ""

    def tick(self) -> None:
        """Refresh the live line."""
        self._progress.live(f"{self._label} ... {time.monotonic() - self._start:.0f} s")

    def finish(self, failed: bool) -> None:
        """Print the final line of the step."""
        outcome = "failed after " if failed else ""
        line = f"{self._label}: {outcome}{time.monotonic() - self._start:.1f} s"
        self._progress.line(f"{line}{f' ({self.note})' if self.note else ''}")


class Progress:
    """Prints steps with the time since the start in front."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._start = time.monotonic()
        self._live_width = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._start

    @contextmanager
    def step(self, label: str) -> Iterator[Step]:
        """Show a step from its beginning to its end."""
        step = Step(self, label)
        step.tick()
        try:
            yield step
        except BaseException:
            step.finish(failed=True)
            raise
        step.finish(failed=False)

    def live(self, text: str) -> None:
        """Rewrite the live line; shows nothing if the output is not a terminal."""
        if self._is_terminal:
            # A line that wraps could not be rewritten.
            room = shutil.get_terminal_size().columns - 1
            self._write(f"\r{self._stamped(text)[:room].ljust(self._live_width)}")
            self._live_width = min(room, len(self._stamped(text)))

    def line(self, text: str) -> None:
        """Print a line that stays."""
        start = "\r" if self._is_terminal else ""
        self._write(f"{start}{self._stamped(text).ljust(self._live_width)}\n")
        self._live_width = 0

    def _stamped(self, text: str) -> str:
        return f"[{self.elapsed_s:6.1f} s] {text}"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
