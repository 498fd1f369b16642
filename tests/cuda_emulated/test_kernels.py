"""The kernels themselves, without torch."""

from __future__ import annotations

import pytest
from nightly import NIGHTLY

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


# It takes a minute to compile the other two with the sanitizers.
BEFORE_A_CHANGE = ("attention_decode.cpp", "linear.cpp")
SOURCES = [pytest.param(s, marks=() if s in BEFORE_A_CHANGE else NIGHTLY) for s in PROGRAMS]


@pytest.mark.parametrize("source", SOURCES)
def test_no_access_out_of_bounds_and_nothing_unwritten(build: Build, source: str):
    sources = [f"../../cuda_kernels/{operator}.cu" for operator in PROGRAMS[source]]
    program = build(source, *sources, flags=SANITIZE)
    for seed in range(2):
        done = run(program, seed=seed)
        assert done.returncode == 0, done.stdout + done.stderr


def test_division_by_multiplication(build: Build):
    done = run(build("divide.cu", flags=SANITIZE))
    assert done.returncode == 0, done.stdout + done.stderr
