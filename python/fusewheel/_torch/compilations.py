"""The beginning and the end of each compilation, of which a backend sees only a part."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from fusewheel._torch.dynamo import innermost
from fusewheel._torch.find import find

# The module whose import makes the list of those who hear of compilations.
HOME = "torch._dynamo.callback"
_TRACER = "torch._dynamo.convert_frame"


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
        handler = find(f"{HOME}.callback_handler", "show that PyTorch traces", otherwise=None)
        if handler is not None and self._start not in handler.start_callbacks:
            handler.register_start_callback(self._start)
            handler.register_end_callback(self._end)

    def _start(self, _: object) -> None:
        if self._is_own(_backend_on_the_stack()):
            self._entered.enter_context(self._block())

    def _end(self, _: object) -> None:
        self._entered.close()


def _backend_on_the_stack() -> object:
    """The backend that Dynamo compiles for: it hands this on from function to function only."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _TRACER and "compiler_fn" in frame.f_locals:
            return innermost(frame.f_locals["compiler_fn"])
        frame = frame.f_back
    return None
