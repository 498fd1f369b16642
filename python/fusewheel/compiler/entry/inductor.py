"""The rewriter as a pass of Inductor; importing this module loads Inductor."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import sys
from functools import cache
from pathlib import Path
from typing import Any

from torch._inductor import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.virtualized import V
from torch.fx import Graph

import fusewheel
from fusewheel._version import __version__

from . import processor
from .metadata import inference
from .pattern import Pattern
from .registry import known_patterns
from .report import Recorder
from .rewrite import rewrite
from .switches import disabled


class Rewrite(CustomGraphPass):
    """Replaces what fusewheel has operators for, after the pass that was there before.

    Attributes:
        previous: the value of ``pre_grad_custom_pass`` it stands in for: a pass, several or None.
    """

    def __init__(self, previous: Any) -> None:
        self.previous = previous

    def __call__(self, graph: Graph) -> None:
        """Run the passes on a graph."""
        from torch._dynamo.utils import counters

        for earlier in self._passes():
            earlier(graph)
        module = graph.owning_module
        if module is None or _in_body():
            return
        # What is compiled ahead of time has no backward; its metadata does not tell.
        with inference() if V.aot_compilation else contextlib.nullcontext():
            report = rewrite(module, recorder=Recorder(attentions=False), inner="inductor")
            counters["fusewheel"].update(report.counts())

    def uuid(self) -> Any:
        """What decides the rewritten graph; None, which keeps it out of caches, if that is open."""
        parts: list[object] = [
            earlier.uuid() if isinstance(earlier, CustomGraphPass) else None
            for earlier in self._passes()
        ]
        parts.append(_identity(known_patterns(), disabled()))
        return None if None in parts else tuple(parts)

    def _passes(self) -> tuple[Any, ...]:
        if self.previous is None:
            return ()
        several = isinstance(self.previous, (list, tuple))
        return tuple(self.previous) if several else (self.previous,)


def _in_body() -> bool:
    """Whether Inductor is at the body of a higher-order operator.

    It calls its passes on each of these first, where nothing tells what the operator makes of the
    body. The rewriter gets to those it knows from the graph that calls them.
    """
    code, depth = compile_fx._recursive_pre_grad_passes.__code__, 0
    frame = inspect.currentframe()
    while frame is not None:
        depth += frame.f_code is code
        frame = frame.f_back
    return depth > 1


@cache
def _identity(patterns: tuple[Pattern, ...], off: frozenset[str]) -> str | None:
    """A hash of the rewriter, the patterns, the kernels there are, and what cost rules look at."""
    files = set(Path(__file__).parent.rglob("*.py"))
    for pattern in patterns:
        source = getattr(sys.modules.get(pattern.match.__module__), "__file__", None)
        if source is None:
            return None
        files.add(Path(source))
    found = hashlib.sha256(__version__.encode())
    for file in sorted(files):
        found.update(file.read_bytes())
    names = [pattern.name for pattern in patterns]
    kernels = [(b.name, b.loaded, sorted(b.facts.items())) for b in fusewheel.backends()]
    found.update(repr((names, sorted(off), kernels, processor.facts())).encode())
    return found.hexdigest()
