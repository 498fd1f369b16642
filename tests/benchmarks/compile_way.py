"""One mode of one model, timed in turns with others: its process and what it took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.compile_worker import EAGER
from fusewheel._core.process import ChildError

LONG_S = 20.0


class TooLong(Exception):
    """A first run did not end in time."""


class Remote(Protocol):
    """A worker process."""

    def call(self, method: str, *args: Any, waiting: Callable[[], None] = ...) -> Any:
        """Execute one method there."""

    def close(self) -> None:
        """End it."""


@dataclass
class Way:
    """One mode of one model: its process and what it took in the current case."""

    mode: str
    remote: Remote
    note: str = ""
    first: float = 0.0
    peak: int = 0
    seconds: list[float] = field(default_factory=list)

    def begin(self, case: str, limit: float) -> None:
        """The first run, in which a mode compiles, one for the peak of the memory, one after that.

        Runs that take long are timed at once: what happens in a first run is nothing beside them.
        """
        self.first, self.peak, self.seconds = 0.0, 0, []
        if self.note:
            return
        end = time.monotonic() + limit

        def check() -> None:
            if time.monotonic() > end:
                raise TooLong

        try:
            self.first, self.peak = self.remote.call("measured", case, waiting=check)
            if self.mode == EAGER and self.first > LONG_S:
                self.seconds = [self.first]
                return
            seconds, self.peak = self.remote.call("measured", case, waiting=check)
            if seconds > LONG_S:
                self.seconds = [seconds]
                return
            # What is timed must not pay for memory that was given back.
            self.remote.call("run", case, waiting=check)
        except (TooLong, ChildError) as error:
            late = f"the first run of {case} took more than {limit:g} s"
            self.note = late if isinstance(error, TooLong) else f"{case} failed: {error}"
            self.remote.close()

    def again(self, case: str, limit: float) -> None:
        """One more run, unless those so far took too long."""
        if self.note or (self.seconds and sum(self.seconds) > limit):
            return
        try:
            self.seconds.append(self.remote.call("run", case))
        except ChildError as error:
            self.note = f"{case} failed: {error}"
            self.remote.close()

    @property
    def median(self) -> float | None:
        """The median of the runs, None where there is none."""
        return statistics.median(self.seconds) if self.seconds else None
