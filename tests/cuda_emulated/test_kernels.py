"""The kernels themselves, without torch."""

from __future__ import annotations

import pytest

from .conftest import SANITIZE, Build, run

PROGRAMS = {
    "attention.cpp": ("attention/attention", "attention/attention_backward"),
    "attention_decode.cpp": ("attention/attention_decode",),
    "kernels.cpp": (
        "attention/merge_attention",
        "tutorial/mul",
        "activation/silu_mul",
        "norm/rms_norm",
        "rotary/rope",
    ),
    "linear.cpp": ("linear/linear", "linear/linear_int8", "linear/linear_int4", "linear/round"),
}


@pytest.mark.parametrize("source", PROGRAMS)
def test_no_access_out_of_bounds_and_nothing_unwritten(build: Build, source: str):
    sources = [f"../../cuda_kernels/{operator}.cu" for operator in PROGRAMS[source]]
    program = build(source, *sources, flags=SANITIZE)
    for seed in range(2):
        done = run(program, seed=seed)
        assert done.returncode == 0, done.stdout + done.stderr


def test_division_by_multiplication(build: Build):
    done = run(build("divide.cu", flags=SANITIZE))
    assert done.returncode == 0, done.stdout + done.stderr
