"""The one place that shows progress: tqdm on a terminal, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TextIO, TypeVar

Item = TypeVar("Item")

# What a terminal does with its cursor: a line down or up in the same column; keep and restore it;
# erase what stands right of it.
_DOWN, _UP, _KEEP, _BACK, _ERASE = "\x1bD", "\x1b[A", "\x1b7", "\x1b8", "\x1b[K"


def progress(
    iterable: Iterable[Item],
    *,
    total: int | None = None,
    describe: str | Callable[[Item], str] = "",
) -> Iterator[Item]:
    """Hands on what `iterable` gives, and shows a progress bar on standard error meanwhile.

    It shows nothing if standard error is not a terminal. The bar is removed at the end.

    Args:
        iterable: what to go through.
        total: the number of items; default None, which means `len(iterable)` if it has one.
        describe: what is being done; or a function that returns this for an item. Default "".

    Returns:
        an iterator over the same items.

    Warns:
        UserWarning: tqdm is not installed, so no bar is shown.
    """
    text = describe if isinstance(describe, str) else ""
    bar = _bar(sys.stderr, iterable=iterable, total=total, desc=text, dynamic_ncols=True)
    if bar is None:
        return iter(iterable)
    return iter(bar) if isinstance(describe, str) else _described(bar, describe)


def _described(bar: Any, describe: Callable[[Item], str]) -> Iterator[Item]:
    for item in bar:
        bar.set_description(describe(item))
        yield item


class LiveLine:
    """A line at the bottom of a terminal whose text changes; nothing on any other stream.

    Lines that stay are printed with `print`, which removes the live line.

    Args:
        stream: where to write it.
        below: draw below the line that the cursor is in, which may be somebody's own; default
            False, which means in that line.
    """

    def __init__(self, stream: TextIO | None, *, below: bool = False) -> None:
        self._stream = stream
        self._below = below
        self._bar: Any = None
        self.text = ""

    def show(self, text: str) -> None:
        """Show this text from now on, cut to the width of the terminal."""
        self.text = text
        if self._bar is None:
            self._bar = _bar(self._stream, self._below, bar_format="{desc}")
        if self._bar is not None:
            # A line that wraps could not be removed.
            room = shutil.get_terminal_size().columns - 1
            self._bar.set_description_str(text[:room])

    def close(self) -> None:
        """Remove the line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self.text = ""

    def print(self, text: str) -> None:
        """Print a line that stays."""
        self.close()
        print(text, file=self._stream, flush=True)


# The line of the work under way in this thread: its parts change the line's text.
_line: ContextVar[LiveLine | None] = ContextVar("fusewheel_line", default=None)


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Shows a line on standard error while the body runs; nothing if that is not a terminal.

    The body runs in the middle of other programs. So bars and texts that they have on the terminal
    stay as they are, and nothing is shown if a program has put a stream of its own in place of
    standard error, as rich does while its bars are shown.
    """
    found = _line.get()
    # The end may come in another thread; then a line that is closed is left here.
    outer = found if found is not None and found.text else None
    line = outer or LiveLine(sys.stderr if sys.stderr is sys.__stderr__ else None, below=True)
    before = line.text
    _line.set(line)
    line.show(text)
    try:
        yield
    finally:
        if outer is None:
            line.close()
        else:
            line.show(before)
        _line.set(outer)


def _bar(stream: TextIO | None, below: bool = False, **options: Any) -> Any:
    """A bar of tqdm; None if nobody looks at the stream, or without tqdm."""
    if stream is None or not stream.isatty() or (below and os.environ.get("TERM") == "dumb"):
        return None
    try:
        # Not tqdm.rich, which warns that it is experimental.
        from tqdm import tqdm
    except ImportError:
        warnings.warn("fusewheel: progress is not shown: pip install tqdm", stacklevel=3)
        return None

    class Bar(tqdm):
        """Starts no thread, because the doctor forks and no thread survives a fork."""

        monitor_interval = 0

    class BarBelow(Bar):
        """Leaves the cursor, and the line that it is in, where they are."""

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            # Down, where a screen may scroll, and up again: then there is room. If somebody has
            # ended a line meanwhile, a warning for example, the cursor is in what was drawn before.
            rows = abs(self.pos if pos is None else pos)
            self.fp.write(f"{_DOWN * rows}{_UP * rows}{_ERASE}{_KEEP}")
            super().display(msg, pos)
            self.fp.write(_BACK)

    if below:
        bars: Any = Bar
        # The first place that no bar has, but for that of the cursor.
        options["position"] = max(1, bars._get_free_pos())
        return BarBelow(file=stream, leave=False, **options)
    return Bar(file=stream, leave=False, **options)
