"""The patterns the compiler looks for: its own, and those of other packages."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points

from fusewheel.compiler.ir.canonical import operations
from fusewheel.compiler.ir.pattern import Pattern
from fusewheel.compiler.match.recompile import drop_compiled
from fusewheel.compiler.patterns import all_patterns

GROUP = "fusewheel.patterns"
# The name of the rewrite of growing caches, which is no pattern: it looks at a whole graph, and
# depends on what runs it.
APPEND = "append"
# That of what is captured in place of transformers' loop over experts. No graph shows the loop.
EXPERTS = "experts"
# That of the capture of language models without Dynamo.
CAPTURE = "capture"
_NO_PATTERNS = {
    APPEND: "the rewrite of caches",
    EXPERTS: "the rewrite of experts",
    CAPTURE: "the capture of language models",
}

_log = logging.getLogger("fusewheel.compiler")
_lock = threading.RLock()
_registered: dict[str, Pattern] = {}


def register(pattern: Pattern) -> Pattern:
    """Add a pattern, which the compiler looks for in every graph that it compiles from now on.

    What was compiled with ``backend="fusewheel"`` before is compiled again at its next call. An
    installed package does not need to call this: the compiler finds a `Pattern` that an entry point
    in the group ``fusewheel.patterns`` names.

    Args:
        pattern: the pattern; registering the same object again does nothing.

    Returns:
        the pattern.

    Raises:
        TypeError: if `pattern` is not a `Pattern`.
        ValueError: if its name is taken, it has no anchors, an anchor is not the name of an
            operation, or its operator is not named like ``namespace::name``.
    """
    with _lock:
        others = [*all_patterns(), *_installed(), *_registered.values()]
        is_new = _add(_registered, pattern, others)
    # Not under the lock: this waits for compilations, which ask for the patterns.
    if is_new:
        drop_compiled()
    return pattern


def unregister(name: str) -> None:
    """Remove a pattern that `register` added.

    Args:
        name: the name of the pattern.

    Raises:
        ValueError: if no registered pattern has that name.
    """
    with _lock:
        if name not in _registered:
            raise ValueError(f"no registered pattern is called {name!r}, {_there_are(_registered)}")
        del _registered[name]
    drop_compiled()


def known_patterns() -> tuple[Pattern, ...]:
    """All patterns, in the order in which they run."""
    with _lock:
        found = [*all_patterns(), *_installed(), *_registered.values()]
    return tuple(sorted(found, key=lambda pattern: (pattern.order, pattern.name)))


def check_names(names: Iterable[str]) -> None:
    """Check names of patterns.

    Raises:
        TypeError: if a name is not a string.
        ValueError: if there is no pattern of that name; the message lists the known names.
    """
    known = {*_NO_PATTERNS, *(pattern.name for pattern in known_patterns())}
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"the name of a pattern is a str, not {type(name).__name__}")
        if name not in known:
            raise ValueError(f"no pattern is called {name!r}, {_there_are(known)}")


def _there_are(names: Iterable[str]) -> str:
    return "there are " + (", ".join(sorted(names)) or "none")


def _add(into: dict[str, Pattern], pattern: Pattern, others: Iterable[Pattern]) -> bool:
    """Check a pattern and add it; False if this object was added before."""
    if not isinstance(pattern, Pattern):
        raise TypeError(
            f"a fusewheel.compiler.Pattern is expected, not {type(pattern).__name__}: {pattern!r}"
        )
    name = pattern.name
    if name in _NO_PATTERNS:
        raise ValueError(f"{name!r} is the name of {_NO_PATTERNS[name]}")
    for other in others:
        if other is pattern:
            return False
        if other.name == name:
            raise ValueError(
                f"a pattern called {name!r} is there already, it emits {other.operator}"
            )
    namespace, _, operator = pattern.operator.partition("::")
    if not namespace or not operator:
        raise ValueError(
            f"pattern {name!r}: operator is a name like 'namespace::name', not {pattern.operator!r}"
        )
    unknown = sorted(set(pattern.anchors) - operations())
    if unknown or not pattern.anchors:
        what = f"no operation is called {unknown[0]!r}" if unknown else "it has no anchors"
        raise ValueError(f"pattern {name!r}: {what}, {_there_are(operations())}")
    into[name] = pattern
    return True


@cache
def _installed() -> tuple[Pattern, ...]:
    """The patterns that entry points of installed packages name."""
    found: dict[str, Pattern] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            _add(found, entry.load(), [*all_patterns(), *found.values()])
        except Exception:
            # Losing a rewrite is better than losing the user's model.
            if os.environ.get("FUSEWHEEL_COMPILER_STRICT"):
                raise
            _log.warning(
                "entry point %s = %s of the group %s is left out",
                entry.name,
                entry.value,
                GROUP,
                exc_info=True,
            )
    return tuple(found.values())
