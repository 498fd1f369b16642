"""Runs pytest as often as it is asked to, each time in a fork of a process that has PyTorch.

Reads a JSON line for each run from standard input, the arguments of `run`, and answers with a line
that is the exit status. It is started with the names of modules to import.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time

import pytest


class Limit:
    """Ends the process within a test that never ends.

    Args:
        seconds: of processor time that a test may take.
    """

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def pytest_runtest_logstart(self) -> None:
        """Gives the test that begins its time."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        until = int(used.ru_utime + used.ru_stime) + self.seconds
        resource.setrlimit(resource.RLIMIT_CPU, (until, most))


def child(arguments: list[str], output: str, test_seconds: int) -> None:
    """Becomes pytest; does not return."""
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, nothing), (1, file), (2, nothing)):
        os.dup2(source, target)
    try:
        code = int(pytest.main(arguments, plugins=[Limit(test_seconds)]))
        sys.stdout.flush()
    except BaseException:
        code = int(pytest.ExitCode.INTERNAL_ERROR)
    os._exit(code)


def run(arguments: list[str], output: str, seconds: float, test_seconds: int) -> int:
    """The exit status of pytest; minus a signal's number if one has ended it."""
    process = os.fork()
    if process == 0:
        child(arguments, output, test_seconds)
    end = time.monotonic() + seconds
    try:
        while (done := os.waitpid(process, os.WNOHANG)) == (0, 0):
            if time.monotonic() > end:
                os.kill(process, signal.SIGKILL)
                done = os.waitpid(process, 0)
                break
            time.sleep(0.02)
    finally:
        _end_group(process)
    return os.waitstatus_to_exitcode(done[1])


def _end_group(process: int) -> None:
    """Ends what a run has left behind: its processes are a group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def main() -> None:
    """Imports, then answers until standard input ends."""
    sys.path[0] = os.getcwd()
    # Modules may print while they are imported.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        print(run(**json.loads(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
