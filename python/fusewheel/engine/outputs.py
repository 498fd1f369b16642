"""What a program's ``outputs`` say, for those who cannot read the program.

They are integers: how many sizes, (kind, a, b, value) of each, how many outputs, and for each its
dtype, its rank, the sizes of its dimensions and its strides, as places in the table of sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusewheel.engine.program import DTYPES, KINDS

_DTYPES = {number: dtype for dtype, number in DTYPES.items()}


class Output(NamedTuple):
    """An output: sizes and strides are symbolic where those of the inputs are."""

    dtype: torch.dtype
    sizes: list[Any]
    strides: list[Any]


def read_outputs(outputs: Sequence[int], inputs: Sequence[Tensor]) -> list[Output]:
    """The outputs that a program has for these inputs.

    Raises:
        RuntimeError: if `outputs` is not what a program says of its outputs.
    """
    try:
        return _read(iter(outputs), inputs)
    except (StopIteration, IndexError, KeyError) as error:
        raise RuntimeError("run: outputs must be what the program says of its outputs") from error


def _read(numbers: Iterator[int], inputs: Sequence[Tensor]) -> list[Output]:
    table: list[Any] = []
    for _ in range(next(numbers)):
        kind, a, b, value = next(numbers), next(numbers), next(numbers), next(numbers)
        table.append(_compute(KINDS[kind], a, b, value, table, inputs))
    found = []
    for _ in range(next(numbers)):
        dtype, rank = _DTYPES[next(numbers)], next(numbers)
        dims = []
        for _ in range(2 * rank):
            dims.append(table[next(numbers)])  # a comprehension would hide that nothing is left
        found.append(Output(dtype, dims[:rank], dims[rank:]))
    return found


def _compute(
    kind: str, a: int, b: int, value: int, table: list[Any], inputs: Sequence[Tensor]
) -> Any:
    if kind == "constant":
        return value
    if kind == "size":
        return inputs[a].shape[b]
    if kind == "stride":
        return inputs[a].stride()[b]
    left, right = table[a], table[b]
    if kind == "add":
        return left + right
    if kind == "subtract":
        return left - right
    if kind == "multiply":
        return left * right
    if kind == "floor_divide":
        return left // right
    if kind == "modulo":
        return left % right
    return torch.sym_max(left, right) if kind == "maximum" else torch.sym_min(left, right)
