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
