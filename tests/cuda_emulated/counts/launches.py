"""Calls operators on the emulated CUDA kernels and says what each launch moved."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import fusewheel_cuda

VECTOR = 16
"""Bytes of the widest access of a lane."""
WARP = 32
SHARED = 227 << 10
"""Bytes that a block of an H100 or a B200 can have."""
CACHE = 64 << 10
"""Bytes that the caches of a large GPU hold for each of the blocks that it runs at a time."""


@dataclass(frozen=True)
class Instruction:
    """All executions of one access to memory by all warps of a launch.

    Attributes:
        place: where it stands in the library's file; `addr2line` knows the line.
        shared: whether it goes to shared memory, and not to global memory.
        writes: whether it writes.
        width: bytes of one lane's access.
        executions: how often a warp executed it.
        lanes: how many lanes took part, in all executions.
        bytes: how many different ones each execution touched, in all executions.
        sectors: how many pieces of 32 bytes of global memory each execution touched.
        needed: how many such pieces would hold `bytes`.
        passes: how often shared memory had to serve an execution: more than once if several
            words are in the same bank.
        least_passes: how often it would without such conflicts.
    """

    place: int
    shared: bool
    writes: bool
    width: int
    executions: int
    lanes: int
    bytes: int
    sectors: int
    needed: int
    passes: int
    least_passes: int


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        name: the operator that launched it.
        kernel: where its code begins in the library's file.
        grid: how many blocks.
        block: how many threads of each.
        shared: bytes of dynamic shared memory of a block.
        read: bytes of the pieces of 32 bytes of global memory that were read, each once.
        written: bytes of those that were written, each once.
        products: multiplications by tensor cores.
        instructions: what it executed.
    """

    name: str
    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    read: int
    written: int
    products: int
    instructions: tuple[Instruction, ...]

    @property
    def moved(self) -> int:
        """Bytes between the chip and its memory, if a cache holds what is read again."""
        return self.read + self.written

    @property
    def blocks(self) -> int:
        """How many blocks the grid has."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """How many threads a block has."""
        return self.block[0] * self.block[1] * self.block[2]


@cache
def _library() -> Any:
    library = ctypes.CDLL(str(fusewheel_cuda.library))
    library.fusewheel_emulation_report.restype = ctypes.c_char_p
    return library


@contextmanager
def watching() -> Iterator[None]:
    """Within it every launch is counted, and a race ends it with an error."""
    _library().fusewheel_emulation_watch(1)
    try:
        yield
    finally:
        _library().fusewheel_emulation_watch(0)


def launches(call: Callable[[], Any], cache: int = CACHE) -> list[Launch]:
    """What a call launches on a GPU with that shared memory; RuntimeError if there is a race.

    `cache` is what its caches hold for each block, in bytes.
    """
    settings = {
        "FUSEWHEEL_EMULATION_SHARED": str(SHARED),
        "FUSEWHEEL_EMULATION_CACHE": str(cache),
    }
    with watching(), patch.dict(os.environ, settings):
        call()
        return parsed(_library().fusewheel_emulation_report())


def parsed(report: str | bytes) -> list[Launch]:
    """The launches of a report that the emulation has written."""
    return [_launch(**launch) for launch in json.loads(report)]


def _launch(
    grid: list[int], block: list[int], instructions: list[dict[str, int]], **rest: Any
) -> Launch:
    x, y, z = grid
    threads = block[0], block[1], block[2]
    found = tuple(_instruction(**instruction) for instruction in instructions)
    return Launch(grid=(x, y, z), block=threads, instructions=found, **rest)


def _instruction(shared: int, writes: int, **rest: int) -> Instruction:
    return Instruction(shared=bool(shared), writes=bool(writes), **rest)
