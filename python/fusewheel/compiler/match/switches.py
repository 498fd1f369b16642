"""Switches patterns off, to find out which one a difference comes from."""

from __future__ import annotations

import threading
from collections import Counter

from fusewheel.compiler.match.recompile import drop_compiled
from fusewheel.compiler.match.registry import check_names

REASON = "disabled by fusewheel.compiler.disable"

_lock = threading.Lock()
_disabled: Counter[str] = Counter()


class Disabled:
    """Patterns that are off until `enable` is called, or until its ``with`` block ends."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        _change(names, 1)

    def enable(self) -> None:
        """Switch them on, unless another `disable` keeps them off; a second call does nothing."""
        with _lock:
            names, self._names = self._names, frozenset()
        _change(names, -1)

    def __enter__(self) -> Disabled:
        return self

    def __exit__(self, *error: object) -> None:
        self.enable()

    def __repr__(self) -> str:
        return f"Disabled({', '.join(sorted(self._names))})"


def disable(*names: str) -> Disabled:
    """Switch patterns off in the whole process, until they are switched on again.

    Use it as a function or as a context manager::

        with fusewheel.compiler.disable("rope", "rms_norm"):
            model(x)
        off = fusewheel.compiler.disable("rope")
        off.enable()

    What was compiled with ``backend="fusewheel"`` is compiled again at its next call, whenever a
    pattern is switched off or on. Matches of a pattern that is off are reported as refusals. Blocks
    may overlap, also in several threads: a pattern is on when no `disable` keeps it off.

    Args:
        *names: names of patterns, as `explain` prints them; at least one.

    Returns:
        an object whose `enable` switches them on again; also a context manager.

    Raises:
        TypeError: if there is no name, or a name is not a string.
        ValueError: if there is no pattern of a name; the message lists the known names.
    """
    if not names:
        raise TypeError("disable() needs at least one name of a pattern")
    check_names(names)
    return Disabled(frozenset(names))


def disabled() -> frozenset[str]:
    """The names of the patterns that are switched off."""
    with _lock:
        return frozenset(_disabled)


def _change(names: frozenset[str], by: int) -> None:
    with _lock:
        before = frozenset(_disabled)
        _disabled.update(dict.fromkeys(names, by))
        for name in names:
            if _disabled[name] <= 0:
                del _disabled[name]
        changed = frozenset(_disabled) != before
    # Not under the lock: this waits for compilations, which ask what is switched off.
    if changed:
        drop_compiled()
