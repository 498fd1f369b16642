"""The rewriter as a pass of Inductor, which `fusewheel.inductor` switches on and off.

The two are apart because importing this module loads Inductor.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from torch.fx import Graph

from fusewheel._core.backends import backends
from fusewheel._core.version import __version__
from fusewheel._torch.dynamo import counters
from fusewheel._torch.inductor import is_ahead_of_time, is_in_body, pass_class
from fusewheel.compiler.cost import processor
from fusewheel.compiler.ir.metadata import inference
from fusewheel.compiler.ir.pattern import Pattern
from fusewheel.compiler.match.registry import known_patterns
from fusewheel.compiler.match.report import Recorder
from fusewheel.compiler.match.rewrite import rewrite
from fusewheel.compiler.match.switches import disabled

_Pass: Any = pass_class()


class Rewrite(_Pass):
    """The pass that replaces parts of a graph by fused operators; the previous pass runs first.

    Attributes:
        previous: the previous value of ``pre_grad_custom_pass``: a pass, several, or None.
        is_on: whether it replaces anything now; without it only the previous pass runs.
    """

    def __init__(self, previous: Any, is_on: Callable[[], bool] = lambda: True) -> None:
        self.previous = previous
        self.is_on = is_on

    def __deepcopy__(self, memo: object) -> Rewrite:
        # Threads copy the settings they read, and `fusewheel.inductor.disable` has to reach each.
        return self

    def __call__(self, graph: Graph) -> None:
        """Run the passes on a graph."""
        for earlier in self._passes():
            earlier(graph)
        module = graph.owning_module
        if module is None or is_in_body() or not self.is_on():
            return
        # A graph that is compiled ahead of time has no backward, which its metadata does not say.
        with inference() if is_ahead_of_time() else contextlib.nullcontext():
            report = rewrite(module, recorder=Recorder(counts_only=True), inner="inductor")
            counters()["fusewheel"].update(report.counts())

    def uuid(self) -> Any:
        """A key for everything that the rewritten graph depends on; None, which disables caching,
        if that is not known.
        """
        parts: list[object] = [
            earlier.uuid() if isinstance(earlier, _Pass) else None for earlier in self._passes()
        ]
        parts.append(
            _identity(known_patterns(), disabled(), processor.facts()) if self.is_on() else "off"
        )
        return None if None in parts else tuple(parts)

    def _passes(self) -> tuple[Any, ...]:
        if self.previous is None:
            return ()
        several = isinstance(self.previous, (list, tuple))
        return tuple(self.previous) if several else (self.previous,)


@cache
def _identity(
    patterns: tuple[Pattern, ...], off: frozenset[str], facts: tuple[object, ...]
) -> str | None:
    """A hash of the rewriter, the patterns, the loaded kernels, and what cost rules ask about."""
    files = set(Path(__file__).parents[1].rglob("*.py"))
    for pattern in patterns:
        source = getattr(sys.modules.get(pattern.match.__module__), "__file__", None)
        if source is None:
            return None
        files.add(Path(source))
    found = hashlib.sha256(__version__.encode())
    for file in sorted(files):
        found.update(file.read_bytes())
    names = [pattern.name for pattern in patterns]
    kernels = [(b.name, b.loaded, sorted(b.facts.items())) for b in backends()]
    found.update(repr((names, sorted(off), kernels, facts)).encode())
    return found.hexdigest()
