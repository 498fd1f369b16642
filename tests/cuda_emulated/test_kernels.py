"""The kernels themselves, without torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from nightly import NIGHTLY

from .conftest import SANITIZE, Build, run

PROGRAMS = {
    "attention.cpp": ("attention/attention", "attention/attention_backward", "attention/packing"),
    "attention_decode.cpp": ("attention/attention_decode",),
    "kernels.cpp": (
        "attention/merge_attention",
        "tutorial/mul",
        "activation/silu_mul",
        "norm/rms_norm",
        "rotary/rope",
    ),
    "groups.cpp": ("linear/linear_blocks", "experts/grouped_linear"),
    "linear.cpp": ("linear/linear", "linear/linear_int8", "linear/linear_int4", "linear/round"),
}


# It takes a minute to compile each of the others with the sanitizers.
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


KERNELS = Path(__file__).parents[2] / "cuda_kernels"
# What lets a block see, or wait for, what another block of its launch has written.
HANDS_OVER = re.compile(
    r"\batomic\w*|\b__threadfence\w*|cooperative_groups|(?<!asm )\bvolatile\b|\bcluster|"
    r"__nanosleep|\b(?:atom|red|fence|membar|ld\.acquire|st\.release)\.\w+"
)


def hands_over(source: str) -> Iterator[str]:
    """The code of a file, without its comments, in which a block may meet another one."""
    for line in source.splitlines():
        yield from HANDS_OVER.findall(line.partition("//")[0])


# The emulation runs blocks one after another. No order of them gives another result if none
# accesses what another writes: that is checked in every launch that is watched. With atomics it
# would not be enough, and blocks would have to take turns.
def test_no_block_hands_anything_to_another():
    files = [*KERNELS.glob("*/*.cu"), *KERNELS.glob("*/*.h")]
    own = [file for file in files if file.parent.name != "emulation"]
    assert {file.name: found for file in own if (found := [*hands_over(file.read_text())])} == {}


@pytest.mark.parametrize(
    "line",
    [
        "if (atomicAdd(counter, 1) == gridDim.x - 1) {",
        "__threadfence();",
        "while (*static_cast<volatile int*>(ready) == 0) {",
        "cooperative_groups::this_grid().sync();",
        'asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(sum));',
    ],
)
def test_a_hand_over_is_found(line: str):
    assert [*hands_over(line)]
