"""Tensor cores and asynchronous copies on the emulation: the kernels are in tensor.cu."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Build, run


@pytest.fixture(scope="module")
def tensor(build: Build) -> Path:
    return build("tensor.cu", watched=True)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kernel", ["bfloat16", "float16", "rows", "columns", "right"])
def test_tiles_and_copies(tensor, kernel, seed):
    done = run(tensor, kernel, "watched", seed=seed)
    assert (done.returncode, done.stderr) == (0, "")


def test_half_a_warp_multiplies_nothing(tensor):
    done = run(tensor, "half_a_warp", "plain")
    assert "an instruction of whole warps in a warp that is none" in done.stderr


# Unwatched, some orders of the threads hide other faults.
@pytest.mark.parametrize("kernel", ["no_wait", "waits_for_the_first"])
def test_a_copy_that_was_not_waited_for_gives_wrong_numbers(tensor, kernel):
    for seed in range(3):
        assert run(tensor, kernel, "plain", seed=seed).stderr == "a copy is wrong\n"


UNFINISHED = "an access where an asynchronous copy has not been waited for"
UNORDERED = "reads what another thread has written, and no barrier is between them"
UNWRITTEN = "reads shared memory that its block has not written"
FAULTS = {
    "no_wait": [UNFINISHED],
    "waits_for_the_first": [UNFINISHED],
    "writes_in_between": [UNFINISHED],
    "no_barrier": [UNORDERED, UNWRITTEN, UNFINISHED],
    "barrier_before": [UNORDERED, UNFINISHED],
}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kernel", FAULTS)
def test_a_wrong_copy_is_found_in_every_order(tensor, kernel, seed):
    done = run(tensor, kernel, "watched", seed=seed)
    assert done.returncode == 1
    assert any(message in done.stderr for message in FAULTS[kernel]), done.stderr
