"""Runs a column in a process of its own, so that a crash and an endless loop are results too."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from fusewheel._torch import dynamo
from fusewheel.doctor.case import Case, quiet
from fusewheel.doctor.column import Column
from fusewheel.doctor.outcome import Outcome, Status, examine
from fusewheel.doctor.traps import CRASH, HANG, Trap


def isolated(column: Column, cases: Callable[[], Iterable[Case]], seconds: float) -> Outcome:
    """Calls `examine` in a forked process that is ended after `seconds`.

    Call it from a process that has not computed anything with several threads, because threads do
    not survive a fork. Otherwise every column that computes with several threads may hang.

    Raises:
        RuntimeError: this system cannot fork.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise RuntimeError("doctor: this system cannot fork; pass isolate=False")
    # Imported here once and not in every process, because it takes seconds.
    dynamo.load()
    context: Any = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryFile() as log:
        process = context.Process(target=_child, args=(column, cases, sender, log.fileno()))
        with quiet():
            process.start()
        sender.close()
        outcome: Outcome | None = None
        late = not receiver.poll(seconds)
        if not late:
            with contextlib.suppress(EOFError):
                outcome = receiver.recv()
        if late:
            process.kill()
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        log.seek(0)
        words = log.read().decode(errors="replace").strip()[-400:]
    if outcome is not None:
        return outcome
    if late:
        return _ended(column, HANG, f"no result in {seconds:.0f} seconds")
    code = process.exitcode or 0
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return _ended(column, CRASH, f"{how}. {words}".strip())


def _ended(column: Column, trap: Trap, reason: str) -> Outcome:
    return Outcome(column.name, column.theme, Status.FAILS, reason, trap.name, trap.remedy)


def _child(column: Column, cases: Callable[[], Iterable[Case]], sender: Any, log: int) -> None:
    # In a session of its own and without the terminal: what it prints is evidence.
    os.dup2(log, sys.stdout.fileno() if _has_file(sys.stdout) else 1)
    os.dup2(log, 2)
    sender.send(examine(column, cases()))
    sender.close()
    os._exit(0)


def _has_file(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
