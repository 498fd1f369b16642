"""Arguments of the operator `experts`: samples, what must be refused, sizes to benchmark."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make
from fusewheel.ops.linear._blocks import FORMATS
from fusewheel.ops.linear.linear_blocks import random_blocks


def blocks_of(make: Make, name: str, experts: int, rows: int, count: int) -> tuple[Tensor, int]:
    """Weights of all experts in blocks of this format, `count` a row, and its number."""
    blocks = random_blocks(make, name, experts * rows, count)
    return blocks.unflatten(0, (experts, rows)), FORMATS[name].number


def _indices(make: Make, *rows: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(rows, dtype=dtype, device=make.device)


def _floats(make: Make, experts: int, both: int, features: int) -> tuple[Tensor, Tensor]:
    return (
        make(experts, both, features, scale=features**-0.5),
        make(experts, features, both // 2, scale=0.2),
    )


def samples(make: Make) -> Iterator[Arguments]:
    """One token and some, experts that nobody chose, twice the same, and none."""
    gate_up, down = _floats(make, 5, 70, 33)
    some = _indices(make, (1, 4), (4, 4), (-1, 0), (5, 1))
    yield make(4, 33), some, make(4, 2), gate_up, 0, make(5, 70), down, 0, make(5, 33), 0
    gate_up, down = _floats(make, 3, 130, 64)
    one = _indices(make, (2, 0), dtype=torch.int32)
    yield make(1, 64), one, make(1, 2), gate_up, 0, None, down, 0, None, 1
    gate_up, down = make.transposed(2, 40, 24), make.transposed(2, 24, 20)
    many = (torch.arange(40, device=make.device) % 3).view(20, 2)
    yield make.strided(20, 24), many, make.strided(20, 2), gate_up, 0, None, down, 0, None, 2
    for name, tokens in (("Q4_1", 1), ("Q8_0", 3)):
        first, last = blocks_of(make, name, 4, 128, 2), blocks_of(make, name, 4, 64, 2)
        chosen = _indices(make, *((3, 1), (1, 0), (3, 9))[:tokens])
        x = make(tokens, 64)
        yield x, chosen, make(tokens, 2), *first, make(4, 128), *last, make(4, 64), 0
    nobody = make(0, 8), _indices(make).view(0, 2), make(0, 2)
    yield *nobody, make(2, 6, 8), 0, None, make(2, 8, 3), 0, None, 0


def bad_inputs(make: Make) -> Iterator[BadInput]:
    """Tensors that do not fit, numbers that name nothing."""
    x, indices, weights = make(2, 8), _indices(make, (0, 1), (2, 0)), make(2, 2)
    own = make(3, 6, 8), 0, None, make(3, 8, 3), 0, None, 0

    def given(index: int, value: object) -> Arguments:
        arguments: list[object] = [x, indices, weights, *own]
        arguments[index] = value
        return tuple(arguments)

    yield BadInput(given(0, x.int()), "x must be float32.*got int32")
    yield BadInput(given(0, x[0]), r"x must have shape \[tokens, features\], got \[8\]")
    yield BadInput(given(1, indices.float()), "indices must be int32 or int64, got float32")
    shape = r"indices must have shape \[2, k\].*got"
    yield BadInput(given(1, indices[1:]), rf"{shape} \[1, 2\]")
    yield BadInput(given(1, indices[0]), rf"{shape} \[2\]")
    yield BadInput(given(2, weights[:, 1:]), r"weights must have shape \[2, 2\].*got \[2, 1\]")
    yield BadInput(given(2, weights.int()), "weights must be float32.*got int32")
    yield BadInput(given(3, make(6, 8)), "gate_up must have shape .*groups, out features, in")
    yield BadInput(given(3, make(3, 6, 7)), r"gate_up must have shape \[3, 6, 8\].*\[3, 6, 7\]")
    yield BadInput(given(3, make(3, 5, 8)), "gate_up must have an even number.*got 5")
    yield BadInput(given(4, 2), "gate_up must be uint8, got")
    yield BadInput(given(5, make(3, 5)), r"gate_up_bias must have shape \[3, 6\].*\[3, 5\]")
    yield BadInput(given(6, make(2, 8, 3)), r"down must have shape \[3, 8, 3\].*got \[2, 8, 3\]")
    yield BadInput(given(8, make(8)), r"down_bias must have shape \[3, 8\].*got \[8\]")
    yield BadInput(given(9, 3), "activation must be from 0 to 2, got 3")
    if make.dtype != torch.float64:
        wider = "may be float64 only where x is"
        yield BadInput(given(2, weights.double()), f"weights {wider}")
        yield BadInput(given(6, make(3, 8, 3).double()), f"down {wider}")


def benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    """One token and eight, with a label."""
    first, last = make(32, 2048, 1024, scale=1 / 32), make(32, 1024, 1024, scale=1 / 32)
    chosen = torch.arange(32, device=make.device).view(8, 4) * 5 % 32
    for tokens in (1, 8):
        given = make(tokens, 1024), chosen[:tokens], make(tokens, 4)
        yield f"{tokens} tokens, 4 of 32, 1024", (*given, first, 0, None, last, 0, None, 0)
