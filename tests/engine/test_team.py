"""Programs whose steps share one team of threads: who comes to help, and when, changes nothing."""

from __future__ import annotations

import threading

import pytest
import torch
from fusewheel.engine import Program, ProgramWriter
from torch import Tensor

SIZE = 512  # wide enough for several threads
LAYERS = 12
linear = torch.ops.fusewheel.linear.default


def read_inputs(writer: ProgramWriter) -> list[int]:
    row = writer.input(torch.float32, (1, SIZE), (SIZE, 1))
    return [row, *(writer.input(torch.float32, (SIZE, SIZE), (SIZE, 1)) for _ in range(LAYERS))]


def chain(writer: ProgramWriter, x: int, *weights: int) -> int:
    """Layers of one row, each of the result of the one before."""
    for weight in weights:
        y = writer.result(torch.float32, (1, SIZE), (SIZE, 1))
        writer.step(linear, (x, weight, None), (y,), "model.py:1")
        x = y
    return x


@pytest.fixture
def program() -> Program:
    writer = ProgramWriter()
    return writer.finish([chain(writer, *read_inputs(writer))])


@pytest.fixture
def inputs() -> tuple[Tensor, ...]:
    weights = [torch.randn(SIZE, SIZE) / SIZE**0.5 for _ in range(LAYERS)]
    return (torch.randn(1, SIZE), *weights)


def by_operators(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = linear(x, weight, None)
    return x


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_bits_do_not_depend_on_the_threads(
    program: Program, inputs: tuple[Tensor, ...], threads: int
) -> None:
    expected = by_operators(*inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(50):
            assert torch.equal(program(*inputs)[0], expected)
    finally:
        torch.set_num_threads(before)


def test_teams_of_several_callers(program: Program, inputs: tuple[Tensor, ...]) -> None:
    """More threads than processors, each with a team."""
    x, *weights = inputs
    wrong = []

    def run(seed: int) -> None:
        own = x * (seed + 1)
        expected = by_operators(own, *weights)
        if not all(torch.equal(program(own, *weights)[0], expected) for _ in range(50)):
            wrong.append(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.jit.script
def eight_times(code: Tensor, inputs: list[Tensor], outputs: list[int]) -> list[Tensor]:
    """In PyTorch's pool for calls, which is not its pool for parts of a call."""
    calls: list[torch.jit.Future[list[Tensor]]] = []
    for _ in range(8):
        calls.append(torch.jit.fork(torch.ops.fusewheel.run, code, inputs, outputs))
    return [torch.jit.wait(call)[0] for call in calls]


def test_in_threads_of_pytorch(program: Program, inputs: tuple[Tensor, ...]) -> None:
    expected = by_operators(*inputs)
    found = eight_times(program.code, list(inputs), program.outputs)
    assert all(torch.equal(each, expected) for each in found)


def test_an_error_leaves_the_team(inputs: tuple[Tensor, ...]) -> None:
    writer = ProgramWriter()
    given = read_inputs(writer)
    length = writer.number("size", LAYERS + 1, 2)
    cache = writer.input(torch.float32, (1, 1, length, 8), (8, 8, 8, 1))
    rows = writer.input(torch.float32, (1, 1, 1, 4), (4, 4, 4, 1))
    last = chain(writer, *given)
    joined = [writer.result(torch.float32, (1, 1, length, 8), (8, 8, 8, 1)) for _ in range(2)]
    writer.step("engine::append", (cache, rows), joined, "model.py:2")
    program = writer.finish([last, joined[0]])
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"append: .*(\n|.)*from model.py:2"):
            program(*inputs, torch.randn(1, 1, 3, 8), torch.randn(1, 1, 1, 4))
    assert torch.ones(1 << 20).add(1).sum() == 2 << 20  # PyTorch's threads are free again
