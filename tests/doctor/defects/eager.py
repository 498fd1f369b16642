"""Plain calls: registration, values, threads, empty tensors, many elements."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import warnings
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from doctor.defects.declare import Twin, library, planted, random
from fusewheel.doctor import traps
from fusewheel.doctor.columns import huge
from torch import Tensor


@planted("eager", trap=traps.NO_KERNEL)
def no_kernel(twin: Twin) -> Any:
    return twin.operator(lambda x: x * 2, keys=("CUDA",) if twin.faulty else ("CPU",))


@planted("eager", trap=traps.ERROR)
def raises_an_error(twin: Twin) -> Any:
    def kernel(x: Tensor) -> Tensor:
        if twin.faulty:
            raise RuntimeError("the library behind it was not found")
        return x * 2

    return twin.operator(kernel)


@planted("registration", trap=traps.DOUBLE, reason="hides the first one: CPU$")
def registered_twice(twin: Twin) -> Any:
    op = twin.operator(lambda x: x * 2)
    if twin.faulty:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl(twin.name, lambda x: x * 3, "CPU", allow_override=True)
    return op


@planted("schema", trap=traps.VERSION)
def version_not_bumped(twin: Twin) -> Any:
    def kernel(x: Tensor) -> None:
        (x.data if twin.faulty else x).mul_(2)

    return twin.operator(kernel, "(Tensor(a!) x) -> ()", fake=lambda x: None)


@planted("schema", trap=traps.UNDECLARED_WRITE)
def writes_its_input(twin: Twin) -> Any:
    return twin.operator(lambda x: (x if twin.faulty else x.clone()).mul_(2) + 1)


@planted("schema", trap=traps.UNDECLARED_ALIAS)
def returns_a_view(twin: Twin) -> Any:
    return twin.operator(
        lambda x: x.view(-1) if twin.faulty else x.flatten().clone(),
        fake=lambda x: x.new_empty(x.numel()),
    )


@planted("scalars", trap=traps.TRUNCATED, samples=[(random(3, 4), 2.0)])
def float_read_as_int(twin: Twin) -> Any:
    return twin.operator(
        lambda x, factor: x * (int(factor) if twin.faulty else factor),
        "(Tensor x, float factor) -> Tensor",
        fake=lambda x, factor: torch.empty_like(x),
    )


@planted("deterministic", trap=traps.DETERMINISM)
def random_without_a_tag(twin: Twin) -> Any:
    return twin.operator(lambda x: x + (torch.rand_like(x) if twin.faulty else random(*x.shape)))


def one_scratch_for_all(twin: Twin) -> Any:
    scratch = [torch.empty(0)]

    def kernel(x: Tensor) -> Tensor:
        own = scratch if twin.faulty else [torch.empty(0)]
        own[0] = x
        time.sleep(0.001)
        return own[0] * 2

    return twin.operator(kernel)


@planted("threads", trap=traps.THREADS)
def scratch_of_threads(twin: Twin) -> Any:
    return one_scratch_for_all(twin)


def slowly() -> AbstractContextManager[Any]:
    """Threads that start so late that the one before would have ended."""
    start = threading.Thread.start

    def later(thread: threading.Thread) -> None:
        time.sleep(0.01)
        start(thread)

    return mock.patch.object(threading.Thread, "start", later)


@planted("threads", trap=traps.THREADS, where=slowly)
def scratch_of_threads_that_start_slowly(twin: Twin) -> Any:
    return one_scratch_for_all(twin)


@planted("threads", trap=traps.THREADS, reason="^one of 32 threads: this thread has no workspace")
def refuses_a_second_thread(twin: Twin) -> Any:
    home = threading.get_ident()

    def kernel(x: Tensor) -> Tensor:
        if twin.faulty and threading.get_ident() != home:
            raise RuntimeError("this thread has no workspace")
        return x * 2

    return twin.operator(kernel)


def unlocked() -> AbstractContextManager[Any]:
    """As in a free-threaded Python: what is under test here is the column, not Python."""
    return mock.patch.object(sys, "_is_gil_enabled", lambda: False, create=True)


@planted("free threads", trap=traps.THREADS, where=unlocked)
def scratch_of_free_threads(twin: Twin) -> Any:
    return one_scratch_for_all(twin)


def die() -> None:
    """A crash that is planned: pytest would print what every thread was doing."""
    faulthandler.disable()
    os.abort()


@planted("empty", trap=traps.CRASH)
def dies_on_empty(twin: Twin) -> Any:
    return twin.operator(lambda x: x * 2 if x.numel() or not twin.faulty else die())


@planted("empty", trap=traps.HANG)
def hangs_on_empty(twin: Twin) -> Any:
    return twin.operator(
        lambda x: x * 2 if x.numel() or not twin.faulty else threading.Event().wait()
    )


@planted("empty", trap=traps.EMPTY)
def many_for_empty(twin: Twin) -> Any:
    return twin.operator(
        lambda x: x.sum(0) if x.numel() or not twin.faulty else torch.ones(2**21),
        fake=lambda x: x.new_empty(x.shape[1:]),
    )


@planted("empty", trap=traps.EMPTY)
def garbage_for_empty(twin: Twin) -> Any:
    return twin.operator(
        lambda x: x.sum(0) if x.numel() or not twin.faulty else torch.rand(x.shape[1:]),
        fake=lambda x: x.new_empty(x.shape[1:]),
    )


@planted("0-dim", trap=traps.STRIDES)
def scalars_are_zero(twin: Twin) -> Any:
    return twin.operator(lambda x: x * 2 if x.dim() or not twin.faulty else torch.zeros_like(x))


def few() -> AbstractContextManager[Any]:
    """2^31 elements take minutes, so here the limit is lower."""
    return mock.patch.object(huge, "MANY", 2**12)


ROWS = torch.arange(1.0, 13.0).view(3, 4)


@planted("huge", trap=traps.HUGE, samples=[(ROWS,)], where=few)
def doubles_few(twin: Twin) -> Any:
    def kernel(x: Tensor) -> Tensor:
        flat = x.flatten()
        end = 2**12 if twin.faulty else flat.numel()
        return torch.cat((flat[:end] * 2, flat[end:])).view(x.shape)

    return twin.operator(kernel)


@planted("huge", trap=traps.HUGE, samples=[(ROWS,)], where=few)
def sums_few(twin: Twin) -> Any:
    def kernel(x: Tensor) -> Tensor:
        whole = x.numel() < 2**12 or not twin.faulty
        return x.sum(0) if whole else x.flatten()[: 2**12].view(-1, 4).sum(0)

    return twin.operator(kernel, fake=lambda x: x.new_empty(x.shape[1:]))
