"""Calls of a compiled language model that need no Dynamo.

Before each call Dynamo checks guards and fetches every weight from its module, and the first call
it traces for seconds. A model of transformers that is called with tokens, their positions and a
cache of keys and values needs neither: what its operations depend on is in the arguments, and few
of these differ. So each kind of call is captured once (see `capture.py`), and later ones hand
tokens and cache to the compiled graph. Every other call is left to Dynamo.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

from fusewheel._core.garbage import without_collections
from fusewheel._core.progress import working
from fusewheel._torch.compiled_module import context_of_forward
from fusewheel._torch.fx import quiet
from fusewheel._torch.modules import has_global_hooks, has_hooks
from fusewheel.compiler.entry.caches import mark_rows
from fusewheel.compiler.entry.captured import replacing
from fusewheel.compiler.entry.direct.capture import CannotCapture, Capture
from fusewheel.compiler.entry.direct.equal_layers import forwards, replaced
from fusewheel.compiler.entry.direct.language_call import (
    KEEP,
    MASK,
    LanguageCall,
    as_grown,
    copy_of,
    grown_rows,
    grown_strides,
    has_changed,
    is_beyond,
    noted,
    read_call,
)
from fusewheel.compiler.entry.direct.repeated_layers import RepeatedLayers
from fusewheel.compiler.entry.direct.static_rows import forms, write_back
from fusewheel.compiler.entry.direct.unchanged import PACKAGES, Unchanged
from fusewheel.compiler.match.registry import CAPTURE
from fusewheel.compiler.match.switches import disabled

_log = logging.getLogger("fusewheel.compiler")

# A model called with ever new numbers of texts is left to Dynamo, which makes that number a symbol.
_MOST = 12
# Before a window is full, while it becomes full, and afterwards; or for numbers of tokens that the
# model's code tells apart.
_MOST_OF_A_KIND = 4
# The names of the numbers of new tokens, and of tokens that a cache has read.
_TOKENS, _ROWS = "tokens", "rows"
# Their modules compute, and do nothing else that `Unchanged` would not see.
_PACKAGES = (*PACKAGES, "torch.nn.", "fusewheel.")

# Compiles a graph with its example inputs, of which the first ones are tensors of the model.
Compile = Callable[[GraphModule, Sequence[Any], Sequence[Tensor]], Callable[..., Any]]


@dataclass(frozen=True)
class _Program:
    """A kind of call that was compiled.

    Attributes:
        holds: whether it computes a call with so many new tokens and rows of a cache.
        run: the compiled graph, which has the weights already.
        result: the class of the result.
        outputs: the number of the output of `run` that a field of the result is.
        cache: the field that is the cache; empty if none is.
        layers: what each layer of a cache notes beside its keys and values.
    """

    holds: Callable[[int, int], bool]
    run: Callable[..., Sequence[Tensor]]
    result: type
    outputs: dict[str, int]
    cache: str
    layers: list[dict[str, Any]]


class DirectCalls:
    """The calls of one model.

    Args:
        model: the model.
        compile_: compiles a graph; what it returns takes the inputs behind the model's tensors.
        is_usable: asked before each call: whether the model can be captured, and programs hold for
            it as it is now. Default None, for one that does not change: whether `is_known` holds.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        compile_: Compile,
        is_usable: Callable[[], bool] | None = None,
    ) -> None:
        self._model = model
        self._compile = compile_
        known = is_known(model)
        self._is_usable = is_usable or (lambda: known)
        # By the kind of call; None for one that is Dynamo's.
        self._programs: dict[tuple[Any, ...], list[_Program] | None] = {}
        self._lock = threading.Lock()

    def program(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
        """What computes a call, which is compiled now if it is the first of its kind.

        Returns:
            a function without arguments; None for a call that is Dynamo's.
        """
        if torch.compiler.is_compiling() or CAPTURE in disabled():
            return None
        call = None if args else read_call(kwargs, getattr(self._model, "config", None))
        if call is not None and self._is_usable():
            found = _holding(self._programs.get(call.kind), call) or self._made(call, kwargs)
            if found is not None:
                return functools.partial(_run, found, call)
        # The cache may have grown here.
        for rows in grown_rows(kwargs.values()):
            mark_rows(rows)
        return None

    def forget(self) -> None:
        """Drop all programs: what they were captured from has changed."""
        with self._lock:
            self._programs = {}

    def _made(self, call: LanguageCall, kwargs: Mapping[str, Any]) -> _Program | None:
        with self._lock:
            is_new = call.kind not in self._programs
            known = self._programs.get(call.kind, [])
            found = _holding(known, call)
            full = len(self._programs) >= _MOST if is_new else len(known or ()) >= _MOST_OF_A_KIND
            if found is not None or known is None or full:
                return found
            try:
                with without_collections(), working("fusewheel: compiling a language model"):
                    found = self._captured(call, kwargs)
            except Exception as error:
                # Dynamo sees more, and an error of the model itself is raised there.
                _log.info("left to Dynamo: %s", error)
            self._programs[call.kind] = None if found is None else [*known, found]
            return found

    def _captured(self, call: LanguageCall, kwargs: Mapping[str, Any]) -> _Program:
        model = self._model
        if has_global_hooks() or any(map(has_hooks, model.modules())):
            raise CannotCapture("a module has hooks")
        named = (*model.named_parameters(), *model.named_buffers())
        capture = Capture({id(tensor): name for name, tensor in named})
        layers_once = forwards(model, lambda: RepeatedLayers(capture), captured=True)
        with _plain_forward(model):
            before = Unchanged(model)
            try:
                fakes = capture.fakes
                with torch.no_grad(), fakes.mode, quiet(), replaced(layers_once):
                    own, read = _fake_arguments(call, capture)
                    given = {name: value for name, value in kwargs.items() if name != MASK} | own
                    with capture, replacing():
                        result = model._call_impl(**given)
            finally:
                changed = before.restore()
        cache = given[call.name]
        layers = list(map(noted, cache.layers))
        if changed or has_changed(cache, call.cache, read):
            raise CannotCapture("the model changes itself or its cache")
        if call.static is not None and forms(call.static) not in ([], forms(cache)):
            raise CannotCapture("the static cache is made for other keys or values")
        conditions = capture.fakes.conditions()
        holds = _all_of(conditions)
        if not holds(call.count, call.past):
            raise CannotCapture(f"it depends on sizes: {conditions}")
        fields, outputs, field = _read_result(result, cache)
        for layer in cache.layers:
            outputs += [layer.keys, layer.values]
        gm = capture.graph(outputs)
        examples = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        run = self._compile(gm, examples, capture.used)
        gm.graph = Graph()  # `run` reads attributes of the module; its nodes are no longer needed
        return _Program(holds, run, type(result), fields, field, layers)


@contextlib.contextmanager
def _plain_forward(model: torch.nn.Module) -> Iterator[None]:
    """A block in which the model runs its class's `forward`, where Dynamo has compiled that."""
    compiled = vars(model).pop("forward", None)
    try:
        yield
    finally:
        if compiled is not None:
            vars(model)["forward"] = compiled


def _holding(programs: list[_Program] | None, call: LanguageCall) -> _Program | None:
    """The program that computes a call."""
    found = (program for program in programs or () if program.holds(call.count, call.past))
    return next(found, None)


def _all_of(conditions: Sequence[str]) -> Callable[[int, int], bool]:
    """Whether conditions on the numbers of new tokens and of rows hold."""
    together = " and ".join(f"({condition})" for condition in conditions) or "True"
    holds: Callable[[int, int], bool] = eval(f"lambda {_TOKENS}, {_ROWS}: {together}")
    return holds


def is_known(model: torch.nn.Module) -> bool:
    """Whether it is known of all modules that they compute and do nothing else."""
    replaced = [module for module in model.modules() if "forward" in vars(module)]
    if replaced == [model] and context_of_forward(model) is not None:
        replaced = []  # it is the function of the class, compiled
    return not replaced and all(
        type(module).__module__.startswith(_PACKAGES) for module in model.modules()
    )


def _fake_arguments(call: LanguageCall, capture: Capture) -> tuple[dict[str, Any], Any]:
    """The arguments of a call as those of a graph; numbers of tokens and rows are symbols.

    Returns:
        the arguments, and the number of tokens that the cache has read after the call.
    """
    given: dict[str, Any] = {KEEP: 0} if call.keeps_all else {}
    tokens: Any = call.count if call.count == 1 else capture.fakes.size(_TOKENS, call.count)
    rows: Any = call.past if call.past < 2 else capture.fakes.size(_ROWS, call.past)
    for name, tensor in call.tensors.items():
        length = rows + tokens if name == MASK else tokens
        fake = torch.empty((*tensor.shape[:-1], length), dtype=tensor.dtype)
        given[name] = capture.argument(name, fake)
    cache = given[call.name] = copy_of(call.cache, rows)
    if not call.past:
        return given, tokens
    if call.slides:
        capture.argument(_ROWS, torch.empty((rows, 0)))
    for number, layer in enumerate(cache.layers):
        for part in ("keys", "values"):
            tensor = getattr(layer, part)
            batch, heads, kept, width = tensor.shape
            shape = batch, heads, kept if is_beyond(layer, call.past) else rows, width
            fake = torch.empty_strided(shape, grown_strides(shape), dtype=tensor.dtype)
            setattr(layer, part, capture.argument(f"{part}_{number}", fake))
    return given, rows + tokens


def _read_result(result: Any, cache: Any) -> tuple[dict[str, int], list[Tensor], str]:
    """The fields of a result that are tensors, these tensors, and the field that is the cache."""
    if not hasattr(result, "items") or not type(result).__module__.startswith("transformers."):
        raise CannotCapture("its result is no output of transformers")
    fields: dict[str, int] = {}
    outputs: list[Tensor] = []
    field = ""
    for name, value in result.items():
        if value is cache:
            field = name
        elif isinstance(value, Tensor):
            fields[name] = len(outputs)
            outputs.append(value)
        else:
            raise CannotCapture(f"its result has a {type(value).__name__}")
    return fields, outputs, field


def _run(program: _Program, call: LanguageCall) -> Any:
    layers = call.cache.layers
    arguments = list(call.tensors.values())
    if call.past and call.slides:
        arguments.append(torch.empty((call.past, 0)))
    if call.past:
        for layer in layers:
            arguments += (as_grown(layer.keys), as_grown(layer.values))
    found = program.run(*arguments)
    place = len(program.outputs)
    for layer, own in zip(layers, program.layers, strict=True):
        layer.keys, layer.values = found[place], found[place + 1]
        place += 2
        if not call.past:
            vars(layer).update(own)
        if layer.is_sliding:
            layer.cumulative_length += call.count
    fields: dict[str, Any] = {name: found[at] for name, at in program.outputs.items()}
    if call.static is not None:
        write_back(call.static, call.cache, call.past, call.count)
    if program.cache:
        fields[program.cache] = call.cache if call.static is None else call.static
    return program.result(**fields)
