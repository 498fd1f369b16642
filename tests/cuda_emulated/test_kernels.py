"""The kernels themselves, without torch."""

from __future__ import annotations

from .conftest import SANITIZE, Build, run


def test_no_access_out_of_bounds_and_nothing_unwritten(build: Build):
    stems = ("mul", "silu_mul", "rms_norm", "rope")
    sources = [f"../../cuda_kernels/{stem}.cu" for stem in stems]
    program = build("kernels.cpp", *sources, flags=SANITIZE)
    for seed in range(2):
        done = run(program, seed=seed)
        assert done.returncode == 0, done.stdout + done.stderr


def test_division_by_multiplication(build: Build):
    done = run(build("divide.cu", flags=SANITIZE))
    assert done.returncode == 0, done.stdout + done.stderr
