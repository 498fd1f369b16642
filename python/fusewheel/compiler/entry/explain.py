"""`explain`: what the compiler would do to a model."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from .backend import Compiled, rewrite_and_choose
from .export import explain_program
from .report import GraphBreak, Recorder, Report

_calls = itertools.count()


def explain(model: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Report:
    """Capture a model, run it once and tell what fusewheel replaces in it.

    The model runs once, in the current grad mode, training mode and autocast state. Its buffers
    and the random number generators are put back afterwards. Nothing that was compiled before is
    dropped: the capture hangs on a function of its own. Only where the graph breaks, Dynamo
    also keeps a cache entry on the functions of the model in which it breaks.

    Of an ExportedProgram nothing is run: the report is that of `fusewheel.export` where the program
    comes from there, and what that would replace otherwise.

    Args:
        model: a module or function; of a compiled module, the original is looked at. Or an
            ExportedProgram, which takes no inputs.
        *inputs: positional arguments of the call.
        **kwargs: keyword arguments of the call.

    Returns:
        the report, which is also printed.

    Raises:
        TypeError: if inputs come with an ExportedProgram.
        Exception: whatever the model raises for these inputs.
    """
    exported = sys.modules.get("torch.export")
    if exported is not None and isinstance(model, exported.ExportedProgram):
        if inputs or kwargs:
            raise TypeError("explain: an ExportedProgram is not run, and takes no inputs")
        report = explain_program(model)
        print(report)
        return report
    model = getattr(model, "_orig_mod", model)
    recorder = Recorder()
    breaks: list[GraphBreak] = []

    def capture(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        _note_break(gm, breaks)
        rewrite_and_choose(gm, recorder)
        run: Compiled = gm.forward
        return run

    def call(*args: Any, **named: Any) -> Any:
        return model(*args, **named)

    # Dynamo keeps its cache on the code object, and what it knows of dynamic sizes by the name of
    # the code: with a fresh one, neither other compilations nor other explanations are touched.
    call.__code__ = call.__code__.replace(co_name=f"explain_{next(_calls)}")
    with _unchanged(model):
        torch.compile(call, backend=capture)(*inputs, **kwargs)
    report = recorder.report(breaks)
    print(report)
    return report


def _note_break(gm: GraphModule, breaks: list[GraphBreak]) -> None:
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return
    frame = reason.user_stack[-1] if reason.user_stack else None
    source = "<unknown>" if frame is None else f"{frame.filename}:{frame.lineno}"
    found = GraphBreak(str(reason.reason), source, (frame.line or "") if frame else "")
    if found not in breaks:
        breaks.append(found)


@contextlib.contextmanager
def _unchanged(model: Callable[..., Any]) -> Iterator[None]:
    """Put buffers and random number generators back after a block."""
    buffers = list(model.buffers()) if isinstance(model, torch.nn.Module) else []
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    saved = [buffer.detach().clone() for buffer in buffers]
    devices = {t.device for t in [*buffers, *parameters] if t.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(d.index or 0 for d in devices)):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(buffers, saved, strict=True):
                    buffer.copy_(value)
