"""The one place that starts other processes, waits for them and says how they ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

Method = Literal["fork", "spawn"]
_POLL_S = 0.25
# The time in which a process that has nothing to do must end.
_END_S = 5.0
# The time in which it shows that a process is ending, after others have noticed.
_SHOW_S = 2.0
_LINES = 15


class ChildError(RuntimeError):
    """Another process failed; the message is the exception there, in a line, or says how it ended.

    Attributes:
        details: the traceback of the exception, or the last lines that the process printed.
        late: whether the process was ended because it took too long.
    """

    def __init__(self, message: str, details: str = "", *, late: bool = False) -> None:
        super().__init__(message)
        self.details = details
        self.late = late

    @property
    def explanation(self) -> str:
        """The message and the end of the details."""
        return f"{self}. {self.details[-800:].strip()}".strip()


class Child:
    """An object in a process of its own, which executes one call at a time.

    What the process prints goes into a file, whose last lines are in a `ChildError`. Use it as a
    context manager, or call `close`.

    Args:
        factory: is called in the process, at the first call, and returns the object.
        *arguments: the arguments of `factory`.
        method: "spawn" (default) starts a new Python, for which `factory` and the arguments are
            pickled; "fork" copies this process, and threads do not survive that.
        environment: variables to set for the process; default None, which means no others than
            those of this process.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        *arguments: Any,
        method: Method = "spawn",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        work: Any = (factory, arguments)
        if method == "spawn":
            # Not by multiprocessing, which would share the memory of tensors.
            work = pickle.dumps(work)
        handle, self._log = tempfile.mkstemp(suffix=".log")
        os.close(handle)
        context: Any = multiprocessing.get_context(method)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._log, work))
        self._busy = self._closed = False
        with _environment(environment or {}), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of a fork beside other threads
            self._process.start()
        theirs.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def call(self, method: str, *arguments: Any, waiting: Callable[[], None] = lambda: None) -> Any:
        """Calls a method of the object.

        Args:
            method: the name of the method.
            *arguments: its arguments.
            waiting: is called again and again until the method returns; what it raises is raised
                here. Default: does nothing.

        Returns:
            what the method returns.

        Raises:
            ChildError: the method or `factory` raised an exception, or the process ended.
        """
        self._ask(method, arguments)
        while not self._ready(_POLL_S):
            waiting()
        return self._answer()

    def close(self) -> None:
        """Ends the process, at once if it is busy."""
        if self._closed:
            return
        self._closed = True
        if not self._busy:
            with contextlib.suppress(OSError):
                self._pipe.send_bytes(pickle.dumps(None))
            self._process.join(_END_S)
        self._stop()
        self._pipe.close()
        Path(self._log).unlink(missing_ok=True)

    def _ask(self, method: str | None, arguments: tuple[Any, ...] = ()) -> None:
        self._busy = True
        with contextlib.suppress(OSError):  # it ended: the answer says so
            self._pipe.send_bytes(pickle.dumps((method, arguments)))

    def _ready(self, seconds: float) -> bool:
        """Whether there is an answer or the process ended."""
        return self._pipe.poll(seconds) or self._process.exitcode is not None

    def _answer(self) -> Any:
        try:
            # A process that this one has started may keep the pipe open.
            answer = self._pipe.recv_bytes() if self._pipe.poll() else b""
        except (EOFError, OSError):
            answer = b""
        if not answer:
            self._process.join(_END_S)
            self._stop()
            raise self._death()
        self._busy = False
        succeeded, value, details = pickle.loads(answer)
        if not succeeded:
            raise ChildError(value, details)
        return value

    def _death(self) -> ChildError:
        lines = Path(self._log).read_text(errors="replace").strip().splitlines()
        return ChildError(_ending(self._process.exitcode), "\n".join(lines[-_LINES:]))

    def _stop(self) -> None:
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def values(children: Sequence[Child], seconds: float) -> list[Any]:
    """The objects of several processes, which may wait for each other.

    Args:
        children: the processes; with the first that fails, all are closed.
        seconds: the time for all of them.

    Returns:
        a copy of the object of each process, by pickle.

    Raises:
        ChildError: a factory raised an exception, a process ended, or there was no time left.
    """
    deadline = time.monotonic() + seconds
    for child in children:
        child._ask(None)
    found: dict[Child, Any] = {}
    try:
        while len(found) < len(children):
            for child in children:
                if child not in found and child._ready(_POLL_S / 10):
                    found[child] = child._answer()
            if len(found) < len(children) and time.monotonic() > deadline:
                raise ChildError(f"no result in {seconds:.0f} seconds", late=True)
    except ChildError as error:
        # A process that ends is the cause of what others raise, and of their waiting. Its
        # connections, and then its sentinel, are closed before the system says that it has ended.
        if not error.late:
            ended = wait([child._process.sentinel for child in children], _SHOW_S)
            for child in children:
                if child._process.sentinel in ended:
                    child._process.join(_END_S)
        causes = [child._death() for child in children if child._process.exitcode]
        for child in children:
            child.close()
        raise (causes or [error])[0] from None
    return [found[child] for child in children]


def run_program(
    command: Sequence[str | Path],
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a program prints on its standard output.

    Args:
        command: the program and its arguments.
        seconds: the time after which it is ended.
        environment: variables to set for the program; default None, which means no others than
            those of this process.

    Raises:
        ChildError: it failed, or took too long; the details are what it printed on standard error.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"no result in {seconds:.0f} seconds", late=True) from None
    if done.returncode:
        raise ChildError(_ending(done.returncode), done.stderr.strip())
    return done.stdout


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"the process ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    meaning = signal.strsignal(-code)
    return f"the process was ended by {name}" + (f" ({meaning})" if meaning else "")


def _serve(pipe: Connection, log: str, work: Any) -> None:
    """In the other process: makes the object, then executes calls until it is told to end."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = sys.stderr = open(descriptor, "w", buffering=1, errors="replace")  # noqa: SIM115
    forked = not isinstance(work, bytes)
    made: list[Any] = []
    with contextlib.suppress(EOFError, OSError):
        while (request := pickle.loads(pipe.recv_bytes())) is not None:
            pipe.send_bytes(_result(work, made, *request))
    if forked:
        # What runs at the end of Python belongs to the process that this one is a copy of.
        os._exit(0)


def _result(work: Any, made: list[Any], method: str | None, arguments: tuple[Any, ...]) -> bytes:
    try:
        if not made:
            factory, given = pickle.loads(work) if isinstance(work, bytes) else work
            made.append(factory(*given))
        value = made[0] if method is None else getattr(made[0], method)(*arguments)
        return pickle.dumps((True, value, ""))
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        message = f"{type(error).__name__}: {first_line}"
        return pickle.dumps((False, message, traceback.format_exc()))


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables during a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
