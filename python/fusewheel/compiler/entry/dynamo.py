"""The backend that ``torch.compile(model, backend="fusewheel")`` finds by its entry point."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx import Graph, GraphModule
from torch.utils._pytree import tree_leaves

from .costs import loss
from .generation import WORTHWHILE, gain
from .metadata import tensor_of
from .report import Recorder
from .rewrite import bodies, rewrite

Compiled = Callable[..., Any]

_log = logging.getLogger("fusewheel.compiler")


def backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Replace what fusewheel has operators for, then hand the graph to an inner compiler.

    Args:
        gm: the graph Dynamo captured; it is changed in place.
        example_inputs: its inputs.
        mode: as for ``torch.compile``, for the inner compiler.
        options: ``inner`` chooses the inner compiler: ``"inductor"``, ``"none"`` for none at all
            (the rewritten graph runs operator by operator, see `fusewheel.compiler.executor`), the
            name of another registered backend such as ``"aot_eager"`` or ``"eager"``, or a callable
            that takes a graph and example inputs. Without it, it is ``"none"`` on a CPU for a graph
            in which generated code would save next to nothing, see `fusewheel.compiler.generation`,
            and ``"inductor"`` for all others, and wherever a mode or another option is given.
            Every other option goes to the inner compiler.

    Returns:
        the compiled graph.

    Raises:
        torch._dynamo.exc.InvalidBackend: if no backend has the name given as ``inner``.
        TypeError: if ``inner`` is neither a name nor a callable.
        ValueError: if options are given to an inner compiler that takes none.
        RuntimeError: from Inductor, if it does not know an option.
        ValueError: for a mode or another option beside ``inner="none"``.
    """
    from torch._dynamo.utils import counters

    rest = dict(options or {})
    inner = rest.pop("inner", None)
    recorder = Recorder(attentions=False)  # nobody sees these
    compiled = compile_graph(gm, example_inputs, recorder, inner, mode, rest)
    # Where Dynamo and Inductor count what they do.
    counters["fusewheel"].update(recorder.report().counts())
    return compiled


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    recorder: Recorder,
    inner: str | Compiled | None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Rewrite a graph, note it in `recorder` and compile it with `inner`."""
    records_gradients = _records_gradients(gm)
    if inner is None and (mode or options):
        inner = "inductor"
    if inner is None:
        inner = rewrite_and_choose(gm, recorder)
    else:
        rewrite(gm, recorder=recorder, inner=inner if isinstance(inner, str) else None)
    compiled = _inner(inner, mode, dict(options or {}))(gm, example_inputs)
    return compiled if records_gradients else _without_autograd(compiled)


def _records_gradients(gm: GraphModule) -> bool:
    """Whether any result requires a gradient; Dynamo guards on all that this depends on."""
    inputs = ("placeholder", "get_attr", "output")
    return any(
        isinstance(value, torch.Tensor) and value.requires_grad
        for node in gm.graph.nodes
        if node.op not in inputs
        for value in tree_leaves(node.meta.get("example_value"))
    )


def _is_for_cpu(gm: GraphModule) -> bool:
    return all(
        tensor is None or tensor.device.type == "cpu" for tensor in map(tensor_of, gm.graph.nodes)
    )


def rewrite_and_choose(gm: GraphModule, recorder: Recorder) -> str:
    """Rewrite a graph, note it in `recorder` and choose the inner compiler.

    What pays depends on what is chosen, which depends on what is left to generate: so all is
    replaced first, and again without what turns out not to pay.
    """
    if not _is_for_cpu(gm):
        rewrite(gm, recorder=recorder, inner="inductor")
        return "inductor"
    graphs = {body: _copied(body.graph) for body in bodies(gm)}
    noted = copy.deepcopy(recorder)
    rewrite(gm, recorder=recorder)
    inner = _chosen(gm)
    if any(loss(node, inner) for body in graphs for node in body.graph.nodes):
        for body, graph in graphs.items():
            body.graph = graph
        vars(recorder).update(vars(noted))
        rewrite(gm, recorder=recorder, inner=inner)
    return inner


def _copied(graph: Graph) -> Graph:
    twin = copy.deepcopy(graph)
    for node, other in zip(graph.nodes, twin.nodes, strict=True):
        if hasattr(node, "_dynamo_source"):  # Dynamo's own attribute of inputs, for AOTAutograd
            other._dynamo_source = node._dynamo_source
    return twin


def _chosen(gm: GraphModule) -> str:
    """The inner compiler that pays."""
    saved = gain(gm)
    inner = "inductor" if saved > WORTHWHILE else "none"
    _log.info("inner %r: generated code would save about %.1f%% of the time", inner, 100 * saved)
    return inner


def _without_autograd(compiled: Compiled) -> Compiled:
    """Spare each operator the kernel, written in Python, that would find nothing to record."""

    @functools.wraps(compiled)
    def call(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            # Tangents are carried by autograd's kernels as well.
            return compiled(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return compiled(*arguments)

    return call


def _inner(inner: str | Compiled, mode: str | None, options: dict[str, Any]) -> Compiled:
    if inner == "inductor":
        return _inductor(mode, options)
    if inner == "none":
        return _executor(mode, options)
    if isinstance(inner, str):
        from torch._dynamo.backends.registry import lookup_backend

        name, inner = inner, lookup_backend(inner)
        # Those made for debugging ignore what they are given, but for a warning in the log.
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


def _executor(mode: str | None, options: dict[str, Any]) -> Compiled:
    if mode not in (None, "default") or options:
        raise ValueError(
            'inner "none" compiles nothing that a mode or an option could change: expected '
            f"neither, got mode {mode!r} and options {sorted(options)}"
        )
    from .executor import execute

    return lambda gm, example_inputs: execute(gm)


def _inductor(mode: str | None, options: dict[str, Any]) -> Compiled:
    """Inductor as ``torch.compile`` calls it, with its own checks of mode and options."""
    import torch
    import torch.compiler.config as shared

    from fusewheel._version import __version__

    inner: Compiled = torch._TorchCompileInductorWrapper(mode, options, None)

    def compiler(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        # Inductor's caches know an operator by its name only: another version of fusewheel, whose
        # operators may lay out their results differently, must not find this one's entries.
        tag = f"{shared.cache_key_tag}fusewheel-{__version__}"
        with shared.patch(cache_key_tag=tag):  # type: ignore[attr-defined]
            compiled: Compiled = inner(gm, example_inputs)
        return compiled

    return compiler
