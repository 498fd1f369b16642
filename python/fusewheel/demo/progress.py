"""Shows the progress of the demo: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from fusewheel._core.progress import LiveLine


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
        self._line = LiveLine(stream)
        self._start = time.monotonic()

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
        self._line.show(self._stamped(text))

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self._line.print(self._stamped(text))

    def _stamped(self, text: str) -> str:
        return f"[{self.elapsed_s:6.1f} s] {text}"
