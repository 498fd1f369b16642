"""What `torch.compile(module)` returns, and the methods of the module that are called through it.

PyTorch hands out the methods of the module inside, which call that module and so run uncompiled.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from fusewheel._torch.dynamo import innermost
from fusewheel._torch.find import find

# The module whose import makes the class of the wrapper.
HOME = "torch._dynamo.eval_frame"

_PURPOSE = "run the methods of a compiled model compiled"
# A module calls what it finds here, if it is not None; `Module.compile` puts it there.
_has_slot = find("torch.nn.Module._compiled_call_impl", _PURPOSE, otherwise=False) is None
_has_call = find("torch.nn.Module._call_impl", _PURPOSE, otherwise=None) is not None
_SLOT = "_compiled_call_impl"

# The compiled calls of the modules that run compiled in this thread, or task, by their `id`.
_compiled: ContextVar[Mapping[int, Callable[..., Any]]] = ContextVar("compiled")
_lock = threading.Lock()
_open: Counter[int] = Counter()


# Makes of a module, of what compiled it and of its compiled call what is called instead.
Instead = Callable[[Any, Any, Callable[..., Any]], Callable[..., Any]]


def run_compiled(
    name: str, is_own: Callable[[object], bool], instead: Instead, inside: Callable[[Any], Any]
) -> None:
    """Let a method that is called through a compiled wrapper call the compiled module.

    Where this torch makes wrappers in another way than is known here, a call of the method warns
    once, or nothing changes.

    Args:
        name: of the method.
        is_own: whether a backend, as Dynamo keeps it, is ours; other wrappers stay as they are.
        instead: what the method calls for a compiled call.
        inside: the module that the method of a module calls: itself, or one in it.
    """
    wrapper = find("torch._dynamo.eval_frame.OptimizedModule", _PURPOSE, otherwise=None)
    look_up = getattr(wrapper, "__getattr__", None)
    if look_up is None or getattr(look_up, "is_fusewheel", False):
        return

    @functools.wraps(look_up)
    def find_attribute(self: Any, wanted: str) -> Any:
        found = look_up(self, wanted)
        if wanted != name:
            return found
        module, context = self._orig_mod, self.__dict__.get("dynamo_ctx")
        bound = getattr(found, "__self__", None) is module
        own = bound and is_own(innermost(getattr(context, "callback", None)))
        return _through(context, found, instead, inside) if own else found

    find_attribute.is_fusewheel = True  # type: ignore[attr-defined]
    wrapper.__getattr__ = find_attribute


def _through(
    context: Any, method: Any, instead: Instead, inside: Callable[[Any], Any]
) -> Callable[..., Any]:
    """A method of a module which runs while calls of the module are compiled calls."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with compiling(inside(method.__self__), context, method.__name__, instead):
            return method(*args, **kwargs)

    return call


@contextlib.contextmanager
def compiling(module: Any, context: Any, name: str, instead: Instead) -> Iterator[None]:
    """A block in which this thread's calls of a module are compiled calls.

    Args:
        module: the module.
        context: what compiles it, as `torch.compile` makes it.
        name: of the method that makes the calls, for a warning.
        instead: what is called for a compiled call.
    """
    if not (_has_slot and _has_call):
        _warn_once(name)
        yield
        return
    key = id(module)
    with _lock:
        # A module that `Module.compile` has compiled runs as it is.
        if module.__dict__.get(_SLOT) is None:
            setattr(module, _SLOT, _Call(module))
        _open[key] += 1
    call = instead(module, context, context(module._call_impl))
    token = _compiled.set({**_compiled.get({}), key: call})
    try:
        yield
    finally:
        _compiled.reset(token)
        with _lock:
            _open[key] -= 1
            if not _open[key]:
                del _open[key]
                if isinstance(module.__dict__.get(_SLOT), _Call):
                    delattr(module, _SLOT)


class _Call:
    """The call of a module: compiled for those who asked for that, as it is for all others."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = _compiled.get({}).get(id(self._module), self._module._call_impl)
        return run(*args, **kwargs)


@functools.cache
def _warn_once(name: str) -> None:
    warnings.warn(
        f"{name}() of a model that torch.compile(model) returned runs uncompiled with this torch; "
        f'write model.compile(backend="fusewheel") and model.{name}(...)',
        stacklevel=5,
    )


def compiled_call(module: Any) -> Callable[..., Any]:
    """What a module calls that `Module.compile` has compiled."""
    call: Callable[..., Any] = getattr(module, _SLOT)
    return call


def compiles_itself(module: Any) -> bool:
    """Whether `Module.compile` has compiled a module by itself."""
    return module.__dict__.get(_SLOT) is not None


def context_of(module: Any) -> Any:
    """What compiled a module, as `torch.compile` made it; None if that cannot be found out."""
    return _context_in(module.__dict__.get(_SLOT))


def context_of_forward(module: Any) -> Any:
    """What compiled a module by ``module.forward = torch.compile(module.forward)``.

    Returns:
        None if `forward` is another function, or if `compiling` does nothing with this torch.
    """
    if not (_has_slot and _has_call):
        return None
    forward = module.__dict__.get("forward")
    plain = getattr(forward, "_torchdynamo_orig_callable", None)
    own = getattr(plain, "__self__", None) is module
    is_class_s = own and getattr(plain, "__func__", None) is type(module).forward
    return _context_in(forward) if is_class_s else None


def _context_in(call: Any) -> Any:
    for cell in getattr(call, "__closure__", None) or ():
        if callable(getattr(cell.cell_contents, "callback", None)):
            return cell.cell_contents
    return None


def attributes(module: Any) -> dict[str, Any]:
    """The attributes of a module, without what it calls when it is compiled."""
    return {name: value for name, value in vars(module).items() if name != _SLOT}


def set_compiled_call(module: Any, call: Callable[..., Any]) -> None:
    """Let a module that `Module.compile` has compiled call something else."""
    setattr(module, _SLOT, call)
