"""Medians of competitors taken in turn, and the speed of the memory they work on."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

# A fresh large output costs page faults, more than the kernels do: keep freed memory.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**40), "MALLOC_TRIM_THRESHOLD_": str(2**40)}

# A sample this long does not feel the clock.
_SAMPLE = 1e-3
_FEWEST, _MOST = 5, 200


def require(environment: Mapping[str, str]) -> None:
    """Starts this program again if a library has read other values of these variables."""
    if any(os.environ.get(name) != value for name, value in environment.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **environment})


def measure(
    competitors: Mapping[str, Callable[[], Any]], seconds: float, pause: float = 0.0
) -> dict[str, float]:
    """Median time of a call of each, in turns; `seconds` is for one competitor on average.

    With a `pause` (in seconds) each turn waits so long, because the threads of a competitor may
    wait for work by keeping a core busy. Then it calls for half as long before it is timed:
    threads that slept may wake on one core, and are not spread at once.
    """
    # Small operators are called several times in a sample, so that the clock does not matter.
    calls = {name: max(1, int(_SAMPLE / _once(run))) for name, run in competitors.items()}
    samples: dict[str, list[float]] = {name: [] for name in competitors}

    def take_turns() -> None:
        for name, run in competitors.items():
            if pause:
                time.sleep(pause)
                end = time.perf_counter() + pause / 2
                while time.perf_counter() < end:
                    run()
            samples[name].append(_sample(run, calls[name]))

    start = time.perf_counter()
    take_turns()
    turn = time.perf_counter() - start
    for times in samples.values():
        times.clear()  # warm now
    for _ in range(max(_FEWEST, min(_MOST, int(seconds * len(competitors) / turn)))):
        take_turns()
    return {name: statistics.median(times) for name, times in samples.items()}


def _once(run: Callable[[], Any]) -> float:
    run()
    run()
    return max(_sample(run, 1), 1e-9)


def _sample(run: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def copy_seconds_per_byte() -> float:
    """Of memory read or written by PyTorch's copy into a warm buffer."""
    source, target = torch.randn(2**24), torch.empty(2**24)
    times = measure({"copy": lambda: target.copy_(source)}, 0.5)
    return times["copy"] / (2 * source.numel() * source.element_size())


def reader(size: int) -> Callable[[], Any]:
    """A competitor that only reads: `torch.dot` over so many bytes."""
    # Two streams and one multiplication for two values: the fastest reader that PyTorch has.
    first, second = torch.ones(2, size // 8).unbind()
    return lambda: torch.dot(first, second)
