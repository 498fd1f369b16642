"""Switch patterns off, to find out which one a difference comes from."""

from __future__ import annotations

import threading
from collections import Counter

from .recompile import drop_compiled
from .registry import check_names

REASON = "disabled by fusewheel.compiler.disable"

_lock = threading.RLock()
_disabled: Counter[str] = Counter()


class Disabled:
    """Patterns that are switched off until `enable` is called or a ``with`` block over it ends."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        _change(names, 1)

    def enable(self) -> None:
        """Switch them on again, unless another `disable` holds them; a second call does nothing."""
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
    """Switch patterns off, for the whole process, until that is taken back.

    Use it as a function or as a context manager::

        with fusewheel.compiler.disable("rope", "rms_norm"):
            model(x)
        off = fusewheel.compiler.disable("rope")
        off.enable()

    What was compiled with ``backend="fusewheel"`` is compiled anew when it is next called, after
    switching off as after switching on. Matches that are left alone for this reason are reported
    as refusals. Blocks may overlap, in threads too: a pattern is on when nobody holds it off.

    Args:
        *names: names of patterns, as `explain` prints them; at least one.

    Returns:
        what switches them on again.

    Raises:
        TypeError: if there is no name, or one is no string.
        ValueError: if no pattern has such a name.
    """
    if not names:
        raise TypeError("disable() needs the name of a pattern at least")
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
        if frozenset(_disabled) != before:
            drop_compiled()
