"""`explain`: what the compiler replaces in a model."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from fusewheel._core.progress import working
from fusewheel.compiler.entry.caches import append_rows
from fusewheel.compiler.entry.captured import replacing
from fusewheel.compiler.entry.dynamo import Compiled, can_lower, rewrite_and_choose
from fusewheel.compiler.entry.export import explain_program
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.ir.recording import records_gradients
from fusewheel.compiler.match.report import GraphBreak, ProgramPart, Recorder, Report

_calls = itertools.count()


def explain(model: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Report:
    """Capture a model, run it once, and report what fusewheel replaces in it.

    The model runs once, in the current grad mode, training mode and autocast state. Its buffers and
    the random number generators are restored afterwards. Models that are compiled already stay
    compiled. If the graph breaks, Dynamo keeps what it has compiled of the functions in which it
    breaks.

    An ExportedProgram is not run. If it comes from `fusewheel.export`, the report is that of the
    export; otherwise it says what `fusewheel.export` would replace.

    Args:
        model: a module or a function; if it is compiled, the original is examined. Or an
            ExportedProgram, which takes no inputs.
        *inputs: positional arguments of the call.
        **kwargs: keyword arguments of the call.

    Returns:
        the report; printing it gives a table.

    Raises:
        TypeError: if `model` cannot be called, or inputs are given for an ExportedProgram.
        Exception: what the model raises for these inputs.
    """
    exported = sys.modules.get("torch.export")
    if exported is not None and isinstance(model, exported.ExportedProgram):
        if inputs or kwargs:
            raise TypeError("explain: an ExportedProgram takes no inputs, because it is not run")
        return explain_program(model)
    model = getattr(model, "_orig_mod", model)
    if not callable(model):
        raise TypeError(
            f"explain: model must be a module or a function, got {type(model).__name__}"
        )
    recorder = Recorder()
    breaks: list[GraphBreak] = []

    def capture(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        _note_break(gm, breaks)
        recorded = records_gradients(gm, example_inputs)
        inner = rewrite_and_choose(gm, recorder)
        if inner == "none" and not recorded:
            append_rows(gm, recorder)
        if not recorded and can_lower(gm):
            _note_programs(gm, recorder)
        run: Compiled = gm.forward
        return run

    def call(*args: Any, **named: Any) -> Any:
        return model(*args, **named)

    # Dynamo keeps its cache on the code object, and its knowledge of dynamic sizes by the name of
    # the code. A new name keeps other compilations and other explanations unchanged.
    call.__code__ = call.__code__.replace(co_name=f"explain_{next(_calls)}")
    with (
        _unchanged(model),
        replacing(),
        working("fusewheel: explaining a model: PyTorch captures it"),
    ):
        torch.compile(call, backend=capture)(*inputs, **kwargs)
    return recorder.report(breaks)


def _note_programs(gm: GraphModule, recorder: Recorder) -> None:
    from fusewheel.compiler.lower.engine import programs_of

    for part in programs_of(Context(gm.graph)):
        begin, end = part.begin, part.end
        recorder.program(
            ProgramPart(part.steps, begin.source, end.source, part.reason, part.lowered, end.code)
        )


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
    """Restore buffers and random number generators after a block."""
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
