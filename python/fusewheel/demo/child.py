"""Worker processes: an object in a process of its own, which executes one call at a time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_POLL_S = 0.25
_LOG_LINES = 15


class ChildError(RuntimeError):
    """A call failed in the worker process, or the process died."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class Child:
    """The parent's end: starts the process, sends it calls and waits for the answers."""

    def __init__(self, factory: Callable[[], Any], folder: Path, env: Mapping[str, str]) -> None:
        """`factory` is sent to the process and called there."""
        handle, log = tempfile.mkstemp(suffix=".log", dir=folder)
        os.close(handle)
        self._log = Path(log)
        # A new interpreter, because the allocator reads its environment variables at the start.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, log, factory))
        with _environment(env):
            self._process.start()
        theirs.close()

    def call(self, method: str, *args: Any, waiting: Callable[[], None] = lambda: None) -> Any:
        """Execute one method of the object; `waiting` is called while it runs."""
        try:
            self._pipe.send((method, args))
            while not self._pipe.poll(_POLL_S):
                waiting()
            succeeded, answer, details = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            raise ChildError(f"the process ended with exit code {code}", self._log_tail()) from None
        if not succeeded:
            raise ChildError(answer, details)
        return answer

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])


def _serve(pipe: Connection, log: str, factory: Callable[[], Any]) -> None:
    """The worker's end: build the object, then execute calls until the pipe closes."""
    # Otherwise warnings and progress bars of libraries would mix with the parent's output.
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    target = None
    while True:
        try:
            method, args = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if target is None:
                target = factory()
            answer = None if method == "load" else getattr(target, method)(*args)
            pipe.send((True, answer, ""))
        except Exception as error:
            first_line = (str(error).strip().splitlines() or [""])[0]
            message = f"{type(error).__name__}: {first_line}"
            pipe.send((False, message, traceback.format_exc()))


@contextlib.contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during a block."""
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
