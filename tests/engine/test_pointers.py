"""Steps whose kernels are called with pointers, and the memory in which their values lie.

Every step gives the bits of its operator, whether its arguments suit the kernel or not.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from fusewheel.engine import Program, ProgramWriter
from torch import Tensor

ops = torch.ops.fusewheel
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def of_one(overload: Any, arguments: list[Any], used: int | None = None) -> Program:
    """A program that calls an operator, and returns its first `used` results; default: all."""
    results = overload(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    writer = ProgramWriter()
    given = [
        writer.input(a.dtype, a.shape, a.stride()) if isinstance(a, Tensor) else a
        for a in arguments
    ]
    made: list[int | None] = [
        writer.result(r.dtype, r.shape, r.stride()) if used is None or i < used else None
        for i, r in enumerate(results)
    ]
    writer.step(overload, given, made, "model.py:1")
    return writer.finish([m for m in made if m is not None])


def assert_bits(overload: Any, arguments: list[Any], used: int | None = None) -> None:
    expected = overload(*arguments)
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = of_one(overload, arguments, used)(*(a for a in arguments if isinstance(a, Tensor)))
    for got, alone in zip(found, expected, strict=False):
        assert (got.dtype, got.shape, got.stride()) == (alone.dtype, alone.shape, alone.stride())
        assert torch.equal(got, alone)


def rows(dtype: torch.dtype) -> dict[str, Tensor]:
    """Rows of 24 elements, which lie in memory in several ways."""
    wide = torch.randn(3, 5, 48).to(dtype)
    return {
        "contiguous": wide[..., :24].contiguous(),
        "one row": wide[0, :1, :24],
        "apart": wide[0, :, :24],
        "apart in blocks": wide[:, :2, :24],
        "every second element": wide[..., ::2],
        "none": wide[:0, :, :24],
        "vector": wide[0, 0, :24],
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms(dtype: torch.dtype) -> None:
    weight, bias, other = (torch.randn(24).to(dtype) for _ in range(3))
    for x in rows(dtype).values():
        residual = x + other
        for used in (1, None):
            for cast in (0, 1, 2):
                assert_bits(ops.rms_norm.default, [x, weight, 1e-5, cast], used)
            assert_bits(ops.layer_norm.default, [x, weight, None, 1e-5], used)
            assert_bits(ops.layer_norm.default, [x, None, bias, 1e-5], used)
        for used in (1, 2, None):
            assert_bits(ops.add_rms_norm.default, [x, residual, weight, 1e-5, 1], used)
            assert_bits(ops.add_layer_norm.default, [x, residual, weight, bias, 1e-5], used)
    assert_bits(ops.rms_norm.default, [rows(dtype)["contiguous"], weight.expand(2, 24)[0], 1e-5, 0])


@pytest.mark.parametrize("cast", [-1, 3])
def test_a_way_to_cast_that_does_not_exist_is_refused(cast: int) -> None:
    x, weight = torch.randn(3, 24), torch.randn(24)
    writer = ProgramWriter()
    given = [writer.input(t.dtype, t.shape, t.stride()) for t in (x, weight)]
    y = writer.result(x.dtype, x.shape, x.stride())
    # Statistics that nobody uses: so the kernel may be called with pointers.
    writer.step(ops.rms_norm.default, [*given, 1e-5, cast], [y, None], "model.py:1")
    with pytest.raises(RuntimeError, match=f"rms_norm: cast must be .*, got {cast}"):
        writer.finish([y])(x, weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations(dtype: torch.dtype) -> None:
    for x in rows(dtype).values():
        y = x.neg()
        assert_bits(ops.silu_mul.default, [x, y])
        assert_bits(ops.silu_mul.default, [x, y[..., :1]])
        for tanh in (False, True):
            assert_bits(ops.gelu_mul.default, [x, y, tanh])
            assert_bits(ops.gelu.default, [x, tanh])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rope(dtype: torch.dtype) -> None:
    batch, length, size = 2, 3, 16
    q = torch.randn(batch, length, 4, size).to(dtype).transpose(1, 2)
    k = torch.randn(batch, 2, length, size).to(dtype)
    tables = torch.randn(2, batch, length, size).to(dtype)
    for cos, sin in (tables, tables[:, 0], tables[:, :1], tables[:, :, :, : size // 2]):
        for interleaved in (False, True):
            assert_bits(ops.rope.default, [q, k, cos, sin, interleaved, None])
    cos, sin = tables[:, 0]
    assert_bits(ops.rope.default, [q, k, cos.t().contiguous().t(), sin, False, None])
    assert_bits(ops.rope.default, [q.mT.contiguous().mT, k, cos, sin, False, None])
    assert_bits(ops.rope.default, [q[:0], k[:0], cos, sin, False, None])
    positions = torch.tensor([2, 0, 1])
    assert_bits(ops.rope.default, [q, k, cos, sin, False, positions])


def chain(draw: random.Random, steps: int) -> tuple[Program, list[tuple[int, int, int]], list[int]]:
    """``x[i] = silu_mul(x[a], x[b])`` many times, seen in one of two shapes.

    Returns the program, (a, b, shape) of each step and the numbers of those that are returned.
    """
    writer = ProgramWriter()
    count = writer.number("size", 0, 0)
    sizes = (count, 8), (writer.number("floor_divide", count, 2), 16)
    strides = (8, 1), (16, 1)
    values = [writer.input(torch.float32, sizes[0], strides[0])]
    calls = []
    for number in range(1, steps + 1):
        a, b, shape = draw.randrange(number), draw.randrange(number), draw.randrange(2)
        shown = [writer.view(values[i], sizes[shape], strides[shape]) for i in (a, b)]
        values.append(writer.result(torch.float32, sizes[shape], strides[shape]))
        writer.step(ops.silu_mul.default, shown, (values[-1],))
        calls.append((a, b, shape))
    outputs = sorted(draw.sample(range(1, steps + 1), 3))
    return writer.finish([values[i] for i in outputs]), calls, outputs


def test_values_that_live_at_the_same_time_share_no_memory() -> None:
    draw = random.Random(torch.initial_seed())
    for _ in range(20):
        program, calls, outputs = chain(draw, 30)
        for count in (2, 6, 2, 0):
            values = [torch.randn(count, 8)]
            for a, b, shape in calls:
                size = (count, 8) if shape == 0 else (count // 2, 16)
                values.append(ops.silu_mul(values[a].view(size), values[b].view(size)))
            found = program(values[0])
            for got, number in zip(found, outputs, strict=True):
                assert torch.equal(got, values[number])


def allocations(trace: Path, program: Program, *inputs: Tensor) -> int:
    """How often a call allocates memory."""
    program(*inputs)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        program(*inputs)
    profile.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    return sum(event["name"] == "[memory]" and event["args"]["Bytes"] > 0 for event in events)


def test_one_allocation_for_all_values_in_between(tmp_path: Path) -> None:
    def layers(count: int) -> Program:
        writer = ProgramWriter()
        row = torch.float32, (1, 32), (32, 1)
        x, weight = writer.input(*row), writer.input(torch.float32, (32, 32), (32, 1))
        gain = writer.input(torch.float32, (32,), (1,))
        for _ in range(count):
            normal, wide, y = (writer.result(*row) for _ in range(3))
            writer.step(ops.rms_norm.default, (x, gain, 1e-5, 0), (normal, None))
            writer.step(ops.linear.default, (normal, weight, None), (wide,))
            writer.step(ops.silu_mul.default, (wide, x), (y,))
            x = y
        return writer.finish([x])

    inputs = torch.randn(1, 32), torch.randn(32, 32), torch.randn(32)
    # That, and the result.
    assert [allocations(tmp_path / "trace", layers(count), *inputs) for count in (1, 8)] == [2, 2]


def test_values_that_others_need_are_tensors() -> None:
    """An operator of somebody else may keep its argument; a later step must not write to it."""
    kept = []
    with torch.library._scoped_library("steps_that_keep", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: kept.append(x) or x * 2, "CPU")
        from fusewheel.engine import add_step

        add_step(torch.ops.steps_that_keep.twice.default)
        writer = ProgramWriter()
        row = torch.float32, (1, 8), (8, 1)
        x = writer.input(*row)
        a, b, c, d = (writer.result(*row) for _ in range(4))
        writer.step(ops.silu_mul.default, (x, x), (a,))
        writer.step(torch.ops.steps_that_keep.twice.default, (a,), (b,))
        writer.step(ops.silu_mul.default, (b, b), (c,))
        writer.step(ops.silu_mul.default, (c, c), (d,))
        given = torch.randn(1, 8)
        writer.finish([d])(given)
        assert torch.equal(kept[0], ops.silu_mul(given, given))


def test_an_error_is_that_of_the_operator() -> None:
    writer = ProgramWriter()
    x = writer.input(torch.float32, (2, 8), (8, 1))
    weight = writer.input(torch.float32, (7,), (1,))
    y = writer.result(torch.float32, (2, 8), (8, 1))
    writer.step(ops.rms_norm.default, (x, weight, 1e-5, 0), (y, None), "model.py:5")
    with pytest.raises(RuntimeError, match=r"(?s)rms_norm: weight must .* from model\.py:5"):
        writer.finish([y])(torch.randn(2, 8), torch.randn(7))
