"""Settings of torch's compilers, for all threads of the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from fusewheel._torch.find import find

_PURPOSE = "set Inductor up for every thread"
_UNSET = find("torch.utils._config_module._UNSET_SENTINEL", _PURPOSE, None)
_lock = threading.RLock()


def change(settings: Any, name: str, function: Callable[[Any], Any]) -> None:
    """Change a setting in every thread, also in those that start later.

    Since torch 2.12 an assignment to a setting holds for one thread. So the value is changed that
    threads see that have assigned none, and what the calling thread has assigned, if it has.

    Args:
        settings: a module of torch's settings.
        name: of the setting.
        function: makes the new value of the old one; it may be called twice.
    """
    with _lock:
        entry = _entry(settings, name)
        if entry is None:
            setattr(settings, name, function(getattr(settings, name)))
            return
        layer = "default" if entry.env_value_default is _UNSET else "env_value_default"
        common = function(getattr(entry, layer))
        setattr(entry, layer, common)
        if _own(entry) is not _UNSET:
            own = function(_own(entry))
            setattr(settings, name, own)
            if own == common:
                _assign(entry, _UNSET)  # an equal value would hide what another thread changes


@contextlib.contextmanager
def assigned(settings: Any, name: str, value: Any) -> Iterator[None]:
    """A block under another value, in this thread since torch 2.12, in all of them before.

    The block of torch's own `patch` leaves an assignment behind, which would hide later changes.
    """
    entry = _entry(settings, name)
    before = getattr(settings, name) if entry is None else _own(entry)
    setattr(settings, name, value)
    try:
        yield
    finally:
        setattr(settings, name, None if before is _UNSET else before)
        if entry is not None:
            _assign(entry, before)


def _entry(settings: Any, name: str) -> Any:
    """Where torch keeps the values of a setting; None where it does so in an unknown way."""
    entry = getattr(settings, "_config", {}).get(name)
    attributes = ("default", "env_value_default", "user_override")
    known = _UNSET is not None and all(hasattr(entry, attribute) for attribute in attributes)
    return entry if known else None


def _own(entry: Any) -> Any:
    override = entry.user_override
    return override.get() if isinstance(override, ContextVar) else override


def _assign(entry: Any, value: Any) -> None:
    if isinstance(entry.user_override, ContextVar):
        entry.user_override.set(value)
    else:
        entry.user_override = value
