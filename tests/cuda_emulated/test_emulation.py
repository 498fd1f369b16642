"""The emulation finds the mistakes it is there for, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import SANITIZE, Build, run

SEEDS = range(20)


@pytest.fixture(scope="module")
def row_sum(build: Build) -> Path:
    return build("row_sum.cu")


@pytest.fixture(scope="module")
def faults(build: Build) -> Path:
    return build("faults.cu", flags=SANITIZE)


def test_right_sums_in_every_order(row_sum):
    assert [run(row_sum, "none", seed=seed).stdout for seed in SEEDS] == ["0"] * len(SEEDS)


@pytest.mark.parametrize("barrier", ["before_writing", "before_reading"])
def test_missing_barrier_shows_in_some_order(row_sum, barrier):
    wrong = [int(run(row_sum, barrier, seed=seed).stdout) for seed in SEEDS]
    assert sum(count > 0 for count in wrong) >= len(SEEDS) // 4, wrong


def test_an_order_can_be_repeated(row_sum):
    first, second = (run(row_sum, "before_reading", seed=7) for _ in range(2))
    assert first.stdout == second.stdout


@pytest.mark.parametrize("fault", ["reads_beyond_end", "writes_beyond_shared"])
def test_out_of_bounds_is_located(faults, fault):
    done = run(faults, fault)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    location = next(line for line in done.stderr.splitlines() if "#0" in line)
    assert fault in location and "faults.cu" in location


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("leaves_before_barrier", "some threads wait for others that have left the kernel"),
        ("leaves_before_shuffle", "some threads wait for others that have left the kernel"),
        ("loads_misaligned", "misaligned access by whole vectors"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fault_is_an_error(faults, fault, message, seed):
    done = run(faults, fault, seed=seed)
    assert (done.returncode, done.stderr) == (1, f"{fault}: emulation: {message}\n")


# 48 KB are granted unasked; the emulated GPU has 64 KB. 1 KB of either is the kernel's own.
@pytest.mark.parametrize("kilobytes", [1, 40, 47, 48, 60, 63])
def test_a_launch_asks_for_the_shared_memory_it_needs(faults, kilobytes):
    done = run(faults, "fills_shared", str(kilobytes * 1024))
    assert (done.returncode, done.stderr) == (0, "")


def test_more_shared_memory_than_the_gpu_has_is_refused(faults):
    done = run(faults, "fills_shared", str(63 * 1024 + 4))
    assert (done.returncode, done.stderr) == (
        1,
        "fills_shared: a block of the kernel needs 65540 bytes of shared memory, "
        "this GPU has 65536\n",
    )


@pytest.mark.parametrize(("kilobytes", "granted"), [(47, True), (48, False), (60, False)])
def test_shared_memory_that_was_not_asked_for_is_an_error(faults, kilobytes, granted):
    done = run(faults, "fills_unasked_shared", str(kilobytes * 1024))
    message = "fills_unasked_shared: CUDA error 1: invalid argument\n"
    assert (done.returncode, done.stderr) == ((0, "") if granted else (1, message))
