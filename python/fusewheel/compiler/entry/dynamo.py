"""The backend that ``torch.compile(model, backend="fusewheel")`` finds by its entry point."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from fusewheel._core.after_import import after_import
from fusewheel._core.caches import name_version_in_caches
from fusewheel._core.progress import working
from fusewheel._torch import inductor
from fusewheel._torch.autograd import below_autograd, in_forward_mode
from fusewheel._torch.dynamo import (
    CALLBACKS,
    Compilations,
    also_captures,
    backend_named,
    counters,
)
from fusewheel._torch.fx import copy_source
from fusewheel.compiler.cost import rules
from fusewheel.compiler.cost.codegen_gain import WORTHWHILE, WORTHWHILE_WITH_GUARDS, gain
from fusewheel.compiler.entry.caches import append_rows, grown_outputs, with_dynamic_rows
from fusewheel.compiler.entry.captured import dynamo_replaces
from fusewheel.compiler.entry.stored import Stored
from fusewheel.compiler.ir.metadata import tensor_of
from fusewheel.compiler.ir.recording import records_gradients
from fusewheel.compiler.match.recompile import is_own, remember_backend
from fusewheel.compiler.match.registry import known_patterns
from fusewheel.compiler.match.report import Recorder
from fusewheel.compiler.match.rewrite import bodies, rewrite

Compiled = Callable[..., Any]

_log = logging.getLogger("fusewheel.compiler")


@remember_backend
def backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Replace parts of a graph by fused operators, then pass it to an inner compiler.

    Without the option ``inner``, the inner compiler is ``"none"`` for a graph on a CPU in which
    generated code would save next to nothing (see `fusewheel.compiler.cost.codegen_gain`). It is
    ``"inductor"`` for every other graph, and if a mode or another option is given. With ``"none"``,
    the engine runs large parts of a graph that records no gradient.

    Args:
        gm: the graph that Dynamo captured; it is changed in place.
        example_inputs: its inputs.
        mode: as for ``torch.compile``; goes to the inner compiler. Default None.
        options: ``inner`` chooses the inner compiler: ``"inductor"``; ``"none"``, which runs the
            rewritten graph operator by operator (see `fusewheel.compiler.run`); ``"engine"``, which
            does the same without Python (see `fusewheel.compiler.lower`); the name of another
            backend, such as ``"aot_eager"`` or ``"eager"``; or a callable that takes a graph and
            example inputs. All other options go to the inner compiler. Default None.

    Returns:
        the compiled graph.

    Raises:
        InvalidBackend: Dynamo's error, if ``inner`` is not the name of a backend.
        TypeError: if ``inner`` is neither a name nor a callable.
        ValueError: if options are given to an inner compiler that takes none; or for a mode or
            another option beside ``inner="none"``.
        RuntimeError: Inductor's error, if it does not know an option.
    """
    _compilations.watch()
    rest = dict(options or {})
    inner = rest.pop("inner", None)
    recorder = Recorder(counts_only=True)
    with working(f"fusewheel: compiling a graph of {len(gm.graph.nodes):,} nodes"):
        compiled = compile_graph(gm, example_inputs, recorder, inner, mode, rest)
    # Dynamo and Inductor count what they do in the same place.
    counters()["fusewheel"].update(recorder.report().counts())
    return compiled


class NeedsCode(Exception):
    """Raised for a graph that Inductor would be chosen for."""


def without_code(
    inner: str | None, gm: GraphModule, example_inputs: Sequence[Any], weights: Sequence[Tensor]
) -> Compiled:
    """Compile a graph that Dynamo did not capture, without generating code.

    Args:
        inner: the option of `backend`: `"none"`, `"engine"` or None.
        gm: the graph; it is changed in place.
        example_inputs: its inputs.
        weights: the tensors that its first inputs are in every call.

    Returns:
        the compiled graph, which takes the inputs behind the weights.

    Raises:
        NeedsCode: if `inner` is None and generated code is estimated to be faster.
    """
    stored = Stored(gm, inner, weights)
    compiled, counts = stored.load() or (None, {})
    if compiled is None:
        recorder = Recorder(counts_only=True)
        compiled = compile_graph(gm, example_inputs, recorder, inner, weights=weights)
        counts = recorder.report().counts()
        stored.save(gm, counts)
    else:
        compiled = _without_autograd(compiled)
    counters()["fusewheel"].update(counts)
    return compiled


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    recorder: Recorder,
    inner: str | Compiled | None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    weights: Sequence[Tensor] | None = None,
) -> Compiled:
    """Rewrite a graph, note it in `recorder` and compile it with `inner`.

    With `weights`, the compiled graph has these as its first inputs already, and no code is
    generated.

    Raises:
        NeedsCode: with `weights`, if no `inner` is given but Inductor would be chosen.
    """
    held = dict(zip(gm.graph.find_nodes(op="placeholder"), weights or (), strict=False))
    recorded = records_gradients(gm, example_inputs)
    caches = () if recorded else grown_outputs(gm)
    if inner is None and (mode or options):
        inner = "inductor"
    chosen = inner is None
    if inner is None and weights is None:
        inner = rewrite_and_choose(gm, recorder)
    elif inner is None:
        inner = "none"
        rewrite(gm, recorder=recorder, inner=inner)
        if not _is_for_cpu(gm) or _chosen(gm, WORTHWHILE_WITH_GUARDS) != inner:
            raise NeedsCode("generated code is estimated to be faster")
    else:
        # The engine runs the same operators one after another.
        name = "none" if inner == "engine" else inner
        rewrite(gm, recorder=recorder, inner=name if isinstance(name, str) else None)
    lowers = not recorded and can_lower(gm)
    if inner == "engine" and not lowers:
        _log.info("inner 'none': programs have no gradients and no autocast, and run on a CPU")
        inner = "none"
    if inner in ("none", "engine") and not recorded:
        append_rows(gm, recorder)
    if chosen and inner == "none" and lowers:
        compiled = _lowered(gm, held, only_if_faster=True)
    else:
        compiled = _inner(inner, mode, dict(options or {}), held)(gm, example_inputs)
    if recorded:
        return compiled
    compiled = _without_autograd(compiled)
    return compiled if weights is not None else with_dynamic_rows(compiled, caches)


def can_lower(gm: GraphModule) -> bool:
    """Whether parts of a graph in which nothing records a gradient can be programs."""
    return _is_for_cpu(gm) and not torch.is_autocast_enabled("cpu")


def _is_for_cpu(gm: GraphModule) -> bool:
    return all(
        tensor is None or tensor.device.type == "cpu" for tensor in map(tensor_of, gm.graph.nodes)
    )


def rewrite_and_choose(gm: GraphModule, recorder: Recorder) -> str:
    """Rewrite a graph, note it in `recorder` and choose the inner compiler.

    Which replacements pay depends on the inner compiler, and which inner compiler pays depends on
    what is replaced. So everything is replaced first; then the inner compiler is chosen, and the
    graph is rewritten again without the replacements that do not pay with it.
    """
    if not _is_for_cpu(gm):
        rewrite(gm, recorder=recorder, inner="inductor")
        return "inductor"
    graphs = {body: _copied(body.graph) for body in bodies(gm)}
    noted = copy.deepcopy(recorder)
    rewrite(gm, recorder=recorder)
    inner = _chosen(gm, WORTHWHILE)
    nodes = [node for body in graphs for node in body.graph.nodes]
    if any(rules.loss(n, inner, pattern) for pattern in known_patterns() for n in nodes):
        for body, graph in graphs.items():
            body.graph = graph
        vars(recorder).update(vars(noted))
        rewrite(gm, recorder=recorder, inner=inner)
    return inner


def _copied(graph: Graph) -> Graph:
    twin = copy.deepcopy(graph)
    for node, other in zip(graph.nodes, twin.nodes, strict=True):
        copy_source(node, other)
    return twin


def _chosen(gm: GraphModule, worthwhile: float) -> str:
    """The inner compiler that is estimated to be faster; Inductor must save so much of the time."""
    saved = gain(gm)
    inner = "inductor" if saved > worthwhile else "none"
    _log.info("inner %r: generated code would save about %.1f%% of the time", inner, 100 * saved)
    return inner


def _without_autograd(compiled: Compiled) -> Compiled:
    """Run below autograd: the Python kernels on the `Autograd` key would record nothing."""

    @functools.wraps(compiled)
    def call(*arguments: Any) -> Any:
        if in_forward_mode():
            # Forward-mode tangents need autograd's kernels too.
            return compiled(*arguments)
        with below_autograd():
            return compiled(*arguments)

    return call


def _inner(
    inner: str | Compiled, mode: str | None, options: dict[str, Any], weights: Mapping[Node, Tensor]
) -> Compiled:
    if inner == "inductor":
        return _inductor(mode, options)
    if inner in ("none", "engine"):
        return _executor(inner, mode, options, weights)
    if isinstance(inner, str):
        name, inner = inner, backend_named(inner)
        # Backends for debugging ignore options; they only log a warning.
        if options and "debug" in getattr(inner, "_tags", ()):
            raise ValueError(f"inner compiler {name!r} takes no options, got {sorted(options)}")
    if not callable(inner):
        raise TypeError(f"inner is {inner!r}, expected a name or a callable")
    given: dict[str, Any] = {}
    if mode is not None:
        given["mode"] = mode
    if options:
        given["options"] = options
    compiler = inner
    return lambda gm, example_inputs: compiler(gm, example_inputs, **given)


def _executor(
    inner: str, mode: str | None, options: dict[str, Any], weights: Mapping[Node, Tensor]
) -> Compiled:
    if mode not in (None, "default") or options:
        raise ValueError(
            f'inner "{inner}" takes neither a mode nor other options, because it compiles nothing: '
            f"got mode {mode!r} and options {sorted(options)}"
        )
    from fusewheel.compiler.run import execute

    if inner == "none":
        return lambda gm, example_inputs: execute(gm, weights=weights)
    return lambda gm, example_inputs: _lowered(gm, weights, only_if_faster=False)


def _lowered(gm: GraphModule, weights: Mapping[Node, Tensor], *, only_if_faster: bool) -> Compiled:
    from fusewheel.compiler.lower.engine import lower
    from fusewheel.compiler.run import execute

    programs = functools.partial(lower, weights=weights, only_if_faster=only_if_faster)
    return execute(gm, programs, weights)


def _inductor(mode: str | None, options: dict[str, Any]) -> Compiled:
    """Inductor as ``torch.compile`` calls it, with its own checks of mode and options."""
    name_version_in_caches()
    inner: Compiled = inductor.compiler(mode, options)
    return inner


also_captures(dynamo_replaces)

# A model is traced for longer than the backend takes, which is called at the end of that.
_compilations = Compilations(is_own, lambda: working("fusewheel: PyTorch captures a graph"))
after_import(CALLBACKS, _compilations.watch)
