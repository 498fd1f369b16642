"""Text generation of a compiled model without Dynamo.

`generate` of transformers calls a model with tokens and a cache, again and again. Such calls are
captured as those of a frozen model are (`fusewheel.compiler.entry.direct`): that takes a few
seconds, where Dynamo takes half a minute. A frozen model promises not to change; here
`Watched` looks before each call whether it has. All other calls are left to Dynamo.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from fusewheel._core.after_import import after_import
from fusewheel._torch import compiled_module, dynamo
from fusewheel.compiler.entry.direct.calls import DirectCalls, is_known
from fusewheel.compiler.entry.direct.unchanged import Watched
from fusewheel.compiler.entry.dynamo import without_code
from fusewheel.compiler.match.recompile import is_own

_HOME = "transformers.generation.utils"
# Where peft defines models that hold a model of transformers with adapters.
_ADAPTED = "peft.peft_model", "peft.mixed_model"
# A model that changes more often is left to Dynamo, which keeps what it compiled for older states.
_MOST_CHANGES = 8
_NAME = "_fusewheel_generating"
_PLAIN = torch.Tensor, torch.nn.Parameter, torch.nn.Buffer


class Generating:
    """The call of a compiled model that has generated a text.

    Args:
        model: the model.
        compiled: its call as Dynamo compiled it.
        inner: the option of the backend.
    """

    def __init__(
        self, model: torch.nn.Module, compiled: Callable[..., Any], inner: str | None
    ) -> None:
        self._model = model
        self._compiled = compiled
        self._lock = threading.Lock()
        self._watched: Watched | None = None
        self._usable = True
        self._changes = 0
        self.direct = DirectCalls(
            model, functools.partial(without_code, inner), is_usable=self._is_usable
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        if torch.compiler.is_compiling():
            return self._model._call_impl(*args, **kwargs)
        program = None
        if self._changes <= _MOST_CHANGES and dynamo.compiles_as_told():
            program = self.direct.program(args, kwargs)
        return self._compiled(*args, **kwargs) if program is None else program()

    def is_of(self, model: torch.nn.Module) -> bool:
        """Whether it calls this model."""
        return self._model is model

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of what compiled a model begins anew.
        return type(None), ()

    def _is_usable(self) -> bool:
        """Whether the model can be captured as it is now; forgets what it was before."""
        with self._lock:
            if self._watched is None or not self._watched.is_same():
                self._changes += self._watched is not None
                self.direct.forget()
                goes_on = self._changes <= _MOST_CHANGES
                # What is watched holds tensors that the model may have dropped.
                self._watched = Watched(self._model) if goes_on else None
                self._usable = goes_on and _can_be_captured(self._model)
            return self._usable


def _can_be_captured(model: torch.nn.Module) -> bool:
    inside = (module for module in model.modules() if module is not model)
    return (
        is_known(model)
        and not any(module.training for module in model.modules())
        and not any(map(compiled_module.compiles_itself, inside))
        and all(type(tensor) in _PLAIN for tensor in (*model.parameters(), *model.buffers()))
    )


def _generating(model: Any, context: Any, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What `generate` calls for the compiled call of a model, made once for what compiled it."""
    found: Generating | None = vars(context).get(_NAME)
    if found is None or not found.is_of(model):
        settings = dynamo.settings_of(dynamo.innermost(context.callback))
        options = settings.get("options") or {}
        inner = options.get("inner")
        known = not settings.keys() - {"options"} and not options.keys() - {"inner"}
        if not known or inner not in (None, "none", "engine"):
            return compiled
        found = vars(context)[_NAME] = Generating(model, compiled, inner)
    return found


def generating_model(model: Any) -> Any:
    """The model that writes the texts of a model: itself, or the one that peft has adapted."""
    is_adapted = type(model).__module__ in _ADAPTED
    return model.get_base_model() if is_adapted else model


def capture_generation() -> None:
    """Let `generate` of models that this backend compiled capture them, once it is imported.

    Without it, `torch.compile(model, backend="fusewheel").generate()` would run the uncompiled
    model.
    """
    after_import(_HOME, _replace_generate)
    for home in _ADAPTED:
        after_import(home, functools.partial(_replace_adapted, home))
    through = functools.partial(
        compiled_module.run_compiled, "generate", is_own, _generating, generating_model
    )
    after_import(compiled_module.HOME, through)


def _replace_generate() -> None:
    mixin: Any = getattr(sys.modules[_HOME], "GenerationMixin", None)
    plain = getattr(mixin, "generate", None)
    if plain is None:  # a later transformers, whose models Dynamo compiles
        return

    @functools.wraps(plain)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = _if_own(compiled_module.context_of(self))
        if context is not None:
            compiled = compiled_module.compiled_call(self)
            compiled_module.set_compiled_call(self, _generating(self, context, compiled))
            return plain(self, *args, **kwargs)
        context = _if_own(compiled_module.context_of_forward(self))
        if context is not None and not compiled_module.compiles_itself(self):
            with compiled_module.compiling(self, context, "generate", _generating):
                return plain(self, *args, **kwargs)
        return plain(self, *args, **kwargs)

    mixin.generate = generate


def _if_own(context: Any) -> Any:
    """What compiled a model, if it is this backend that does."""
    if context is None or torch.compiler.is_compiling():
        return None
    return context if is_own(dynamo.innermost(context.callback)) else None


def _replace_adapted(home: str) -> None:
    """Let `generate` of peft's models run compiled too: it calls the model inside."""
    kinds = [kind for kind in vars(sys.modules[home]).values() if isinstance(kind, type)]
    for kind in kinds:
        plain = vars(kind).get("generate")
        if kind.__module__ == home and callable(plain):
            setattr(kind, "generate", _through_inside(plain))  # noqa: B010


def _through_inside(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = _if_own(compiled_module.context_of(self))
        if context is None:
            return plain(self, *args, **kwargs)
        inside = generating_model(self)
        with compiled_module.compiling(inside, context, "generate", _generating):
            return plain(self, *args, **kwargs)

    return generate
