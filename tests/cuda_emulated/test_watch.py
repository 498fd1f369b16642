"""What the emulation counts, and that it finds races: the kernels are in watched.cu."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import WATCH, Build, run

ELEMENTS = 128
FLOATS = ELEMENTS * 4


@pytest.fixture(scope="module")
def watched(build: Build) -> Path:
    return build("watched.cu", watched=True)


def counted(watched: Path, kernel: str) -> dict[str, Any]:
    done = run(watched, kernel)
    assert done.returncode == 0, done.stderr
    (launch,) = json.loads(done.stdout)
    assert launch["name"] == kernel
    return dict(launch)


def instruction(launch: dict[str, Any], *, shared: bool, writes: bool) -> dict[str, int]:
    """What all instructions of one kind move, added up."""
    found = [i for i in launch["instructions"] if (i["shared"], i["writes"]) == (shared, writes)]
    return {key: sum(i[key] for i in found) for key in found[0]}


def test_a_copy_moves_what_it_must(watched):
    launch = counted(watched, "copies")
    assert (launch["grid"], launch["block"]) == ([2, 1, 1], [64, 1, 1])
    assert (launch["read"], launch["written"]) == (FLOATS, FLOATS)
    for writes in (False, True):
        found = instruction(launch, shared=False, writes=writes)
        assert found["executions"] == 4  # a warp each
        assert found["lanes"] == ELEMENTS
        assert found["bytes"] == FLOATS
        assert found["sectors"] == found["needed"] == FLOATS // 32
        assert found["width"] == 4


def test_whole_vectors_are_one_access(watched):
    launch = counted(watched, "copies_vectors")
    found = instruction(launch, shared=False, writes=False)
    assert (found["width"], found["executions"], found["bytes"]) == (16, 4, 4 * FLOATS)
    assert found["sectors"] == found["needed"] == 4 * FLOATS // 32


def test_an_uncoalesced_load_is_found(watched):
    launch = counted(watched, "loads_apart")
    found = instruction(launch, shared=False, writes=False)
    assert (found["sectors"], found["needed"]) == (ELEMENTS, FLOATS // 32)
    assert (launch["read"], launch["written"]) == (ELEMENTS * 32, FLOATS)


def test_lanes_that_read_the_same_share_a_sector(watched):
    launch = counted(watched, "loads_one")
    found = instruction(launch, shared=False, writes=False)
    assert (found["sectors"], found["needed"], found["bytes"]) == (4, 4, 4 * 4)
    assert launch["read"] == 32


def test_idle_lanes_are_seen(watched):
    launch = counted(watched, "loads_in_half_the_lanes")
    found = instruction(launch, shared=False, writes=False)
    assert (found["executions"], found["lanes"]) == (4, ELEMENTS // 2)
    assert (found["sectors"], found["needed"]) == (FLOATS // 32, FLOATS // 64)


def test_lanes_that_skip_a_turn_come_back_in_the_next(watched):
    launch = counted(watched, "loads_in_turns")
    found = instruction(launch, shared=False, writes=False)
    assert (found["executions"], found["lanes"]) == (8, ELEMENTS * 3 // 2)
    assert found["sectors"] == found["needed"] == FLOATS * 3 // 2 // 32


@pytest.mark.parametrize(
    ("kernel", "passes"),
    [
        ("fills", 1),
        ("fills_every_second", 2),
        ("fills_vectors", 1),
        ("fills_every_second_vector", 2),
    ],
)
def test_bank_conflicts_are_found(watched, kernel, passes):
    found = instruction(counted(watched, kernel), shared=True, writes=True)
    assert found["passes"] == passes * found["least_passes"]


READS = "reads what another thread has written, and no barrier is between them"
OVERWRITES = "writes where another thread has written, and no barrier is between them"
TOO_EARLY = "writes where another thread has read, and no barrier is between them"
UNWRITTEN = "reads shared memory that its block has not written"

# What may be seen first: that depends on the order of the threads.
RACES = {
    "no_barrier": ("shared", [READS, UNWRITTEN]),
    "warp_barrier_for_a_block": ("shared", [READS, UNWRITTEN]),
    "shuffle_for_a_barrier": ("shared", [READS]),
    "no_second_barrier": ("shared", [TOO_EARLY, READS]),
    "all_write_shared": ("shared", [OVERWRITES]),
    "reads_unwritten": ("shared", [UNWRITTEN]),
    "blocks_add": ("global", ["reads what another thread has written, in another block"]),
    "blocks_write": ("global", ["writes where another thread has written, in another block"]),
    "no_barrier_through_global": ("global", [READS, TOO_EARLY]),
}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kernel", RACES)
def test_a_race_is_found_in_every_order(watched, kernel, seed):
    done = run(watched, kernel, seed=seed)
    memory, messages = RACES[kernel]
    assert done.returncode == 1
    error = rf"{kernel}: emulation: {memory} memory: thread \d+, at 0x[0-9a-f]+, (.*)\n"
    found = re.fullmatch(error, done.stderr)
    assert found is not None, done.stderr
    assert found[1] in messages


# Which of the two blocks comes first depends on the order.
def test_a_read_of_what_another_block_writes_is_a_race(watched):
    errors = {run(watched, "block_reads_another", seed=seed).stderr for seed in range(8)}
    assert any("reads what another thread has written, in another block" in e for e in errors)
    assert any("writes where another thread has read, in another block" in e for e in errors)


@pytest.mark.parametrize(
    "kernel", ["warp_barrier", "barrier", "second_barrier", "barrier_through_global"]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_barrier_is_enough(watched, kernel, seed):
    done = run(watched, kernel, seed=seed)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_watched_unless_kernels_are_compiled_for_it(build):
    launch = counted(build("watched.cu"), "copies")
    assert launch["instructions"] == []
    assert WATCH == ("-fsanitize=thread",)
