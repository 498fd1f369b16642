"""Forked and spawned processes."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from doctor.defects import spawned
from doctor.defects.declare import Twin, planted, random
from fusewheel.doctor import traps
from fusewheel.doctor.columns import processes
from torch import Tensor


@planted("fork", trap=traps.FORK)
def lost_in_a_fork(twin: Twin) -> Any:
    first = os.getpid()

    def kernel(x: Tensor) -> Tensor:
        if os.getpid() != first and twin.faulty:
            raise RuntimeError("the pool of workers is gone")
        return x * 2

    return twin.operator(kernel)


@planted("fork", trap=traps.FORK)
def another_result_in_a_fork(twin: Twin) -> Any:
    first = os.getpid()
    return twin.operator(lambda x: x * (3 if os.getpid() != first and twin.faulty else 2))


# The doctor looks for no smaller one, for which it would start another process.
SMALLEST = [(random(1),)]


def soon() -> AbstractContextManager[Any]:
    """A process hangs after a second."""
    return mock.patch.object(processes, "SECONDS", 1.0)


@planted("fork", trap=traps.HANG, where=soon)
def waits_in_a_fork(twin: Twin) -> Any:
    first = os.getpid()

    def kernel(x: Tensor) -> Tensor:
        if os.getpid() != first and twin.faulty:
            threading.Event().wait()
        return x * 2

    return twin.operator(kernel)


@planted("spawn", trap=traps.SPAWN, samples=SMALLEST, modules=[spawned.__name__])
def registered_by_the_first_process(twin: Twin) -> Any:
    return spawned.registered(at_import=not twin.faulty)


@planted("spawn", trap=traps.SPAWN, samples=SMALLEST, modules=[spawned.__name__])
def another_result_when_spawned(twin: Twin) -> Any:
    return spawned.scaled(twin.faulty)
