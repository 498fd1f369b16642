"""Dynamo: its counters, its backends, when it compiles and captures, what it has compiled."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from fusewheel._torch.find import find

HOME = "torch._dynamo"
# The module whose import makes the list of those who hear of compilations.
CALLBACKS = "torch._dynamo.callback"
_TRACER = "torch._dynamo.convert_frame"
_blocks = threading.local()
_questions: list[Callable[[], bool]] = []


def counters() -> dict[str, Counter[str]]:
    """Where Dynamo and Inductor count what they do; a place of its own where there is none."""
    found: dict[str, Counter[str]] = find(
        "torch._dynamo.utils.counters", "count replacements beside Dynamo's events", _own_counters
    )
    return found


class _Counters(dict[str, Counter[str]]):
    def __missing__(self, key: str) -> Counter[str]:
        return self.setdefault(key, Counter())


_own_counters = _Counters()


def backend_named(name: str) -> Any:
    """A registered backend of `torch.compile`.

    Raises:
        Exception: Dynamo's own, if there is none of that name.
    """
    look_up = find(
        "torch._dynamo.backends.registry.lookup_backend", "find the inner compiler by its name"
    )
    return look_up(name)


def innermost(backend: Any) -> object:
    """The backend that one named it, without what Dynamo wraps around it."""
    unwrap = find(
        "torch._dynamo.eval_frame.innermost_backend", "know its own backend", otherwise=None
    )
    return backend if unwrap is None else unwrap(backend)


def settings_of(backend: Any) -> dict[str, Any]:
    """The mode and the options that a backend is called with."""
    settings: dict[str, Any] = getattr(backend, "kwargs", {})
    return settings


def compiles_as_told() -> bool:
    """Whether `torch.compiler.set_stance` leaves it to compiled functions how they run."""
    told = find(
        "torch._dynamo.eval_frame._stance", "see how compiled functions are to run", otherwise=None
    )
    return getattr(told, "stance", "default") == "default"


def forget_compiled(is_own: Callable[[object], bool]) -> None:
    """Drop the compiled code of all functions that a backend of ours has a part in.

    Where this torch keeps compiled code otherwise than the versions known here, everything goes
    that any backend compiled.

    Args:
        is_own: whether a backend, as Dynamo keeps it with an entry, is ours.
    """
    purpose = "compile again what was compiled under other circumstances"
    entries_of = find(
        "torch._C._dynamo.eval_frame._debug_get_cache_entry_list", purpose, otherwise=None
    )
    reset = find("torch._C._dynamo.eval_frame.reset_code", purpose, otherwise=None)
    seen = find("torch._dynamo.convert_frame.input_codes.seen", purpose, otherwise=None)
    if None in (entries_of, reset, seen):
        torch.compiler.reset()
        return
    # Another thread may be compiling.
    with find("torch._dynamo.convert_frame.compile_lock", purpose, threading.RLock()):
        codes = [code for reference in seen if (code := reference()) is not None]
        for code in codes:
            if any(is_own(entry.backend) for entry in entries_of(code)):
                reset(code)


def leave_to_python(function: Callable[..., Any]) -> None:
    """Keep Dynamo from compiling a function that a compiled one calls through the engine.

    It would make a graph of the few operators in each, with guards for each call.
    """
    purpose = "keep small graphs from being compiled"
    module = "torch._C._dynamo.eval_frame"
    set_strategy = find(f"{module}.set_code_exec_strategy", purpose, None)
    action = find(f"{module}._FrameAction", purpose, None)
    strategy = find(f"{module}._FrameExecStrategy", purpose, None)
    if None not in (set_strategy, action, strategy):
        set_strategy(function.__code__, strategy(action.SKIP, action.SKIP))


def constant_source(name: str) -> Any:
    """Where Dynamo would say that a size comes from."""
    return find("torch._dynamo.source.ConstantSource", "give sizes names in a traced graph")(name)


def is_error_of_dynamo(error: BaseException) -> bool:
    """Whether an exception is one of Dynamo's own."""
    return type(error).__module__.startswith("torch._dynamo")


def is_loaded() -> bool:
    """Whether Dynamo was imported, without which nothing was compiled."""
    return "torch._dynamo" in sys.modules


def load() -> None:
    """Import Dynamo, which takes seconds."""
    find("torch._dynamo", "compile", None)


def counting_backend(name: str) -> Any:
    """A backend that counts the graphs it is given and hands them on to the one named."""
    make = find(
        "torch._dynamo.testing.CompileCounterWithBackend", "count the graphs that are compiled"
    )
    return make(name)


@functools.cache
def _marker() -> Callable[[torch.Tensor, set[int]], None]:
    mark: Callable[[torch.Tensor, set[int]], None] = find(
        "torch._functorch._aot_autograd.runtime_wrappers.mark_dynamo_propagated_dynamic_indices",
        "compile a graph once for caches of all lengths",
        lambda tensor, dimensions: None,
    )
    return mark


def mark_dynamic(tensor: torch.Tensor, dimensions: set[int]) -> None:
    """Tell Dynamo that sizes of a graph's result change; unlike other marks it is not guarded on.

    Where this torch has no such mark, nothing happens, and one more graph is compiled.
    """
    _marker()(tensor, dimensions)


def guarded_through(guard: Any) -> Iterator[Any]:
    """The value that a guard checks, then the value that holds it, and so on up to a variable.

    Args:
        guard: what PyTorch gives a ``guard_filter_fn``.

    Yields:
        PyTorch's names of values, which are equal where these are reached in the same way.
    """
    source = guard.orig_guard.originating_source
    while source is not None:
        yield source
        source = getattr(source, "base", None)


def configured(**settings: Any) -> contextlib.AbstractContextManager[Any]:
    """A block under other settings of Dynamo."""
    patch = find("torch._dynamo.config.patch", "compile under other settings")
    block: contextlib.AbstractContextManager[Any] = patch(**settings)
    return block


def repeats_calls() -> bool:
    """Whether this torch can trace a function once and repeat it in one flat graph."""
    mark = getattr(torch.compiler, "nested_compile_region", None)
    if mark is None or "max_reuse_entries" not in inspect.signature(mark).parameters:
        return False
    return hasattr(
        find("torch._dynamo.config", "trace equal layers once"), "inline_invoke_subgraph"
    )


def repeated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors and modules that Dynamo traces once for all equal calls of it.

    What differs between two calls, it traces again. Only where `repeats_calls`.
    """
    # Each kind of call is an entry, and too many of them are an error.
    call: Callable[..., Any] = torch.compiler.nested_compile_region(
        function, max_reuse_entries=1 << 20
    )
    return call


class Compilations:
    """Runs what Dynamo does for backends of ours in a block: tracing, the backend, guards.

    Where this torch tells of compilations otherwise than is known here, nothing happens.

    Args:
        is_own: whether a backend, as Dynamo keeps it, is ours.
        block: makes the context manager to be entered.
    """

    def __init__(
        self,
        is_own: Callable[[object], bool],
        block: Callable[[], contextlib.AbstractContextManager[Any]],
    ) -> None:
        self._is_own = is_own
        self._block = block
        self._entered = contextlib.ExitStack()

    def watch(self) -> None:
        """Hear of compilations from now on, until `torch.compiler.reset`, which ends that."""
        handler = find(f"{CALLBACKS}.callback_handler", "show that PyTorch traces", otherwise=None)
        if handler is not None and self._start not in handler.start_callbacks:
            handler.register_start_callback(self._start)
            handler.register_end_callback(self._end)

    def _start(self, _: object) -> None:
        if self._is_own(backend_on_the_stack()):
            self._entered.enter_context(self._block())

    def _end(self, _: object) -> None:
        self._entered.close()


def backend_on_the_stack() -> object:
    """The backend that Dynamo compiles for: it hands this on from function to function only.

    None outside of a compilation.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _TRACER and "compiler_fn" in frame.f_locals:
            return innermost(frame.f_locals["compiler_fn"])
        frame = frame.f_back
    return None


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """A block in which this thread captures a program for fusewheel, with Dynamo or without.

    What no graph can show is replaced meanwhile: a loop over the experts that tokens chose, for
    example, whose length is known only when it runs.
    """
    before = getattr(_blocks, "captures", False)
    _blocks.captures = True
    try:
        yield
    finally:
        _blocks.captures = before


def also_captures(question: Callable[[], bool]) -> None:
    """Let a function say too whether a program is captured; it is asked in the thread that does."""
    _questions.append(question)


def is_capturing() -> bool:
    """Whether a program is captured for fusewheel, by this thread."""
    return getattr(_blocks, "captures", False) or any(question() for question in _questions)
