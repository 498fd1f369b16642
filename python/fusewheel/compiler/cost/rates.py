"""How fast the machine copies, multiplies and calls, measured once a process."""

from __future__ import annotations

import functools
import math
import statistics
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from fusewheel._torch.dispatcher import modes_off
from fusewheel.compiler.cost import overrides


class Rates(NamedTuple):
    """Three constants of a machine.

    Attributes:
        bytes_per_second: that a copy in memory reads and writes.
        flops_per_second: the floating-point operations of a float32 matrix product.
        seconds_per_call: what PyTorch's smallest operator takes.
    """

    bytes_per_second: float
    flops_per_second: float
    seconds_per_call: float


# The names of the environment variables, in the order of `Rates`.
VARIABLES = tuple(f"FUSEWHEEL_COMPILER_{name.upper()}" for name in Rates._fields)

# Where several processes work on one model, none of them measures: each could find something else,
# and all of them have to compile the same. These are of two cores of a server's processor.
SHARED = Rates(bytes_per_second=2.0**35, flops_per_second=2.0**38, seconds_per_call=2.0**-20)

# PyTorch copies this many elements and multiplies matrices of these rows with one thread. Several
# threads would have to wait for each other, and on a busy machine that is all one would measure.
_ELEMENTS = 1 << 15
_ROWS = 24, 48
# The copies together are larger than the caches of a core.
_COPIES = 64
_CALLS = 16
_REPEATS = 32
# So many cores use up the bandwidth of the memory.
_COPYING_CORES = 4

_lock = threading.Lock()


def rates() -> Rates:
    """The three constants, each from its environment variable if that is set.

    What is not set is measured when this is called first, in about 10 ms, and never again in this
    process: for one core, then multiplied by the number of threads that PyTorch uses, for copies by
    at most four. Processes that are joined by `torch.distributed` take `SHARED` instead.

    Raises:
        ValueError: if a variable is not a positive number.
    """
    given = [overrides.positive(name) for name in VARIABLES]
    found = given if None not in given else SHARED if is_distributed() else _of_all_threads()
    return Rates._make(own or other for own, other in zip(given, found, strict=True))


def is_distributed() -> bool:
    """Whether this is one of several processes that are joined by `torch.distributed`."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _of_all_threads() -> Rates:
    with _lock:
        one = _measured()
    threads = torch.get_num_threads()
    return Rates(
        one.bytes_per_second * min(threads, _COPYING_CORES),
        one.flops_per_second * threads,
        one.seconds_per_call,
    )


@functools.cache
def _measured() -> Rates:
    """The rates of one core."""
    # What the user has switched on around the call that compiles must not count.
    with modes_off(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        copying = _copying()
        calling = _calling(_ones(8), torch.add)
        small, large = (_calling(_ones(rows, rows), torch.mm) for rows in _ROWS)
    flops = 2 * (_ROWS[1] ** 3 - _ROWS[0] ** 3)
    return Rates(
        bytes_per_second=rounded(2 * 4 * _ELEMENTS / copying),
        # The difference of the two, because a call takes as long as the smaller product.
        flops_per_second=rounded(flops / max(large - small, 1e-9)),
        seconds_per_call=rounded(calling),
    )


def _copying() -> float:
    """The seconds of one of many copies, each from memory that no other copy has read."""
    source, target = (_ones(_COPIES * _ELEMENTS).split(_ELEMENTS) for _ in range(2))
    return statistics.median(
        _seconds(functools.partial(into.copy_, out))
        for into, out in zip(target, source, strict=True)
    )


def _calling(tensor: torch.Tensor, function: Callable[..., torch.Tensor]) -> float:
    """The seconds of one call, in the fastest of many loops."""

    def loop() -> None:
        for _ in range(_CALLS):
            function(tensor, tensor)

    return min(_seconds(loop) for _ in range(_REPEATS)) / _CALLS


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float32, device="cpu")


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def rounded(number: float) -> float:
    """The nearest power of two.

    Two measurements of one machine differ by a few percent, and then mostly give the same. A factor
    of two in a constant rarely changes what is chosen.
    """
    return float(2.0 ** round(math.log2(number)))
