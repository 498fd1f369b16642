"""`freeze`: compiles a model that does not change, without checking whether it has changed."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from operator import attrgetter, getitem, is_
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fusewheel._core.arguments import require_module
from fusewheel._core.garbage import without_collections
from fusewheel._core.progress import working
from fusewheel._torch.compiled_module import compiled_call, set_compiled_call
from fusewheel._torch.dynamo import guarded_through
from fusewheel._torch.modules import has_hooks
from fusewheel.compiler.entry.direct.calls import DirectCalls
from fusewheel.compiler.entry.direct.equal_layers import EqualLayers
from fusewheel.compiler.entry.dynamo import Compiled, backend, without_code
from fusewheel.compiler.entry.generation import generating_model

# The calls in which a model is usually compiled: `generate` compiles the first two.
_COMPILING = 2

# Seconds. A pass over a model takes a good part of a token's time: all that it reads has left the
# processor's caches.
_FRESH = 0.25

# Of a module; they are looked at by themselves.
_TABLES = frozenset(("_modules", "_parameters", "_buffers"))

# By which a layer with adapters of peft is known.
_MERGED = "merged_adapters"

# Of a configuration.
_OUTPUTS = "output_hidden_states", "output_attentions", "output_router_logits"

_attributes = attrgetter("requires_grad", "dtype", "device")


def freeze(
    model: torch.nn.Module, *, options: Mapping[str, Any] | None = None, **settings: Any
) -> torch.nn.Module:
    """Compile a model in place for inference, without guards on its modules and parameters.

    Before each call of a compiled model PyTorch checks ("guards") every tensor and every attribute
    of every layer that the compiled code depends on. In text generation this takes a good part of a
    token's time. With `freeze` you promise that these do not change. It puts the model in eval
    mode, switches the gradients of its parameters off, and compiles it with
    ``backend="fusewheel"``, so that ``model(...)`` and ``model.generate(...)`` run compiled.

    Of a model of peft, the model that it adapts is frozen too: that one writes the texts.

    Calls of a language model with a cache are captured without Dynamo, see
    `fusewheel.compiler.entry.direct`.

    These changes are still noticed, by one pass over the model before each call: a layer, parameter
    or buffer is replaced, added or removed; a dtype or device changes; a parameter requires a
    gradient; training mode; which adapters of peft are active, merged or switched off, and their
    scale. The model then warns and is compiled again with all guards. Values of
    parameters may change in place at any time. No pass is made for the next token of a text: a call
    with one token and the cache (`past_key_values` or `cache`) of the last pass, less than 0.25 s
    after it. If something breaks the graph in or between layers, PyTorch compiles these layers by
    themselves, and they keep their guards.

    Call `freeze` again after any other change, which is not noticed: other attributes of layers (a
    number such as ``eps``, a function, hooks, the configuration), and other shapes and strides that
    are assigned to the ``data`` of a parameter.

    A later ``model.compile(...)`` compiles the model with all guards and undoes the freezing.

    Args:
        model: the module; it is changed in place.
        options: as for ``torch.compile`` with ``backend="fusewheel"``. Default None.
        **settings: other arguments of ``torch.compile``, except ``backend``.

    Returns:
        the model itself.

    Raises:
        TypeError: if `model` is not a module, or a `backend` is given.
        ValueError: if there is a ``guard_filter_fn`` among the options.
    """
    require_module("freeze", model)
    model = getattr(model, "_orig_mod", model)
    if "backend" in settings:
        raise TypeError("freeze: takes no backend, it is always fusewheel's")
    if "guard_filter_fn" in (options or {}):
        raise ValueError("freeze: options must have no guard_filter_fn, freeze has its own")
    model.eval()
    model.requires_grad_(False)
    inside = generating_model(model)
    if inside is not model:
        freeze(inside, options=options, **settings)
    own = {**(options or {}), "guard_filter_fn": _guards(model)}
    layers = EqualLayers(model)
    compile_ = functools.partial(
        torch.compile, model._call_impl, backend=_Backend(layers), options=own, **settings
    )
    call = _Frozen(model, layers, compile_, dict(options or {}), settings)
    inner = own.get("inner")
    if not settings and set(options or {}) <= {"inner"} and inner in (None, "none", "engine"):
        call.direct = DirectCalls(model, functools.partial(without_code, inner))
    else:
        call.compile()  # wrong settings are an error here
    set_compiled_call(model, call)
    return model


def _guards(model: torch.nn.Module) -> Callable[[Sequence[Any]], list[bool]]:
    """Chooses the guards to keep: all but those on modules that are reached from the model itself.

    Behind a break of the graph, a layer may be compiled by itself. That code is tried for every
    other layer of its class, and only guards tell them apart.
    """

    def kept(guards: Sequence[Any]) -> list[bool]:
        own = {next(guarded_through(guard)) for guard in guards if guard.value is model}
        others = torch.compiler.skip_guard_on_all_nn_modules_unsafe(guards)
        return [
            other or own.isdisjoint(guarded_through(guard))
            for other, guard in zip(others, guards, strict=True)
        ]

    return kept


class _Backend:
    """The backend of one frozen model.

    Two frozen models of one class would pass each other's guards. Dynamo takes compiled code only
    for the backend that made it, and this object is equal to itself alone.
    """

    # Where `fusewheel.compiler.match.recompile` looks for the backend inside.
    compiler_fn = staticmethod(backend)

    def __init__(self, layers: EqualLayers) -> None:
        self._layers = layers

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any], **given: Any) -> Compiled:
        self._layers.check(len(example_inputs))
        return backend(gm, example_inputs, **given)


class _Text:
    """A text for which a model was just looked at: the cache that its tokens continue."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        cache = _cache_of(arguments)
        self._cache: Callable[[], object] | None = None
        with contextlib.suppress(TypeError):  # None, or a tuple, which no call takes twice
            self._cache = weakref.ref(cache)
        self._end = time.monotonic() + _FRESH

    def goes_on(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a call is for the next token."""
        cache, ids = _cache_of(arguments), arguments.get("input_ids")
        return (
            self._cache is not None
            and cache is not None
            and cache is self._cache()
            and isinstance(ids, Tensor)
            and ids.shape[-1:] == (1,)
            and time.monotonic() < self._end
        )


def _cache_of(arguments: Mapping[str, Any]) -> object:
    # Its name in transformers 4, and in transformers 5.
    return arguments.get("past_key_values", arguments.get("cache"))


def _is_watched(model: torch.nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Whether something sees what layers compute: only whole layers call their hooks rightly.

    transformers installs hooks in the first call that asks for `output_hidden_states`.
    """
    config = getattr(model, "config", None)
    return (
        any(value for name, value in arguments.items() if name.startswith("output_"))
        or any(getattr(config, name, False) for name in _OUTPUTS)
        or any(map(has_hooks, model.modules()))
    )


def _containers(module: torch.nn.Module) -> list[Any]:
    """What a module notes in dictionaries and lists."""
    own = vars(module).items()
    return [v for name, v in own if name not in _TABLES and isinstance(v, (dict, list))]


def _state(path: str, module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, Any, str]]:
    """What decides which adapters a layer of peft applies, and how."""
    tables = [vars(module), *(found for found in _containers(module) if isinstance(found, dict))]
    for table in tables:
        for name, value in table.items():
            if name not in _TABLES:
                yield table, name, value, f"an adapter of {path}"


class _Frozen:
    """The call of a frozen model: looks for changes first.

    Attributes:
        direct: runs the calls that need no Dynamo; None if all do.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layers: EqualLayers,
        compile_: Callable[[], Callable[..., Any]],
        options: dict[str, Any],
        settings: dict[str, Any],
    ) -> None:
        self.direct: DirectCalls | None = None
        self._model = model
        self._compile = functools.cache(compile_)
        self._again = {"options": options or None, **settings}
        self._calls = 0
        self._text = _Text({})
        self._layers = layers
        tables: list[tuple[str, dict[str, Any]]] = [
            (f"{path}." if path else "", table)
            for path, module in model.named_modules()
            for table in (module._modules, module._parameters, module._buffers)
        ]
        entries = [(t, n, value, p + n) for p, t in tables for n, value in t.items()]
        flags = [
            (vars(module), "training", False, f"the training mode of {path or 'the model'}")
            for path, module in model.named_modules()
        ]
        entries += flags
        adapted = [own for own in model.named_modules() if _MERGED in vars(own[1])]
        entries += [entry for path, module in adapted for entry in _state(path, module)]
        # In columns, so that a check of all of them is one call.
        self._tables = [entry[0] for entry in entries]
        self._names = [entry[1] for entry in entries]
        self._values = [entry[2] for entry in entries]
        self._paths = [entry[3] for entry in entries]
        self._filled: list[Sized] = [table for _, table in tables]
        self._filled += [found for _, module in adapted for found in _containers(module)]
        self._sizes = [len(table) for table in self._filled]
        self._tensors = [value for value in self._values if isinstance(value, Tensor)]
        self._seen = list(map(_attributes, self._tensors))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            # Somebody else captures the model, and holds tensors of their own in its place.
            return self._model._call_impl(*args, **kwargs)
        if self._text.goes_on(kwargs):
            return self._run(*args, **kwargs)
        if self._is_unchanged():
            self._text = _Text(kwargs)
            return self._run(*args, **kwargs)
        warnings.warn(
            f"the model is no longer frozen, because {self._change()} has changed: it is compiled "
            "again, with all guards. Call fusewheel.freeze(model) after the last change",
            stacklevel=3,
        )
        self._model.compile(backend="fusewheel", **self._again)
        return compiled_call(self._model)(*args, **kwargs)

    def compile(self) -> Callable[..., Any]:
        """The model by Dynamo, made when it is first needed: many modules are imported for it."""
        return self._compile()

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self.direct is not None and (program := self.direct.program(args, kwargs)) is not None:
            return program()
        if self._calls >= _COMPILING:
            return self.compile()(*args, **kwargs)
        self._calls += 1
        return self._compiling(*args, **kwargs)

    def _compiling(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self.compile()
        with without_collections(), working("fusewheel: compiling a frozen model"):
            if _is_watched(self._model, kwargs):
                return compiled(*args, **kwargs)
            try:
                with self._layers.traced_once():
                    return compiled(*args, **kwargs)
            except Exception:
                if not self._layers.mixed_up:
                    raise
            return compiled(*args, **kwargs)

    def _is_unchanged(self) -> bool:
        try:
            found = map(getitem, self._tables, self._names)
            return (
                all(map(is_, found, self._values))
                and list(map(len, self._filled)) == self._sizes
                and list(map(_attributes, self._tensors)) == self._seen
            )
        except KeyError:
            return False

    def _change(self) -> str:
        columns = zip(self._tables, self._names, self._values, self._paths, strict=True)
        for table, name, value, path in columns:
            if table.get(name) is not value:
                return path
            if isinstance(value, Tensor):
                index = next(i for i, tensor in enumerate(self._tensors) if tensor is value)
                if _attributes(value) != self._seen[index]:
                    return path
        return "a layer"
