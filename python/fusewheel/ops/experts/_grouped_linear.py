"""Arguments of grouped products: samples, what must be refused, sizes to benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make


def _ends(make: Make, *numbers: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=make.device)


def samples(make: Make) -> Iterator[Arguments]:
    """Of `grouped_linear`."""
    yield make(37, 65), make(4, 33, 65), _ends(make, 20, 20, 21, 37), make(4, 33)
    yield make(9, 40), make(3, 35, 40), _ends(make, 4, 5, 7, dtype=torch.int64), None
    yield make(4, 96), make.transposed(4, 33, 96), _ends(make, 1, 2, 3, 4), make(4, 33)
    strided = _ends(make, 1, 0, 3, 0)[::2]
    yield make.strided(6, 9), make.strided(2, 8, 9), strided, make.strided(2, 8)
    yield make.transposed(6, 9), make(8, 2, 9).transpose(0, 1), _ends(make, 6, 6), None
    yield make(1, 8).expand(5, 8), make(1, 3, 8).expand(2, 3, 8), _ends(make, 2, 5), None
    yield make(0, 8), make(2, 3, 8), _ends(make, 0, 0), make(2, 3)
    yield make(4, 0), make(2, 3, 0), _ends(make, 1, 4), make(2, 3)
    yield make(4, 1), make(2, 1, 1), _ends(make, 2, 4), None


def backward_x_samples(make: Make) -> Iterator[Arguments]:
    """Of the gradient of x."""
    for x, weight, ends, _ in samples(make):
        yield make(x.shape[0], weight.shape[1]), weight, ends


def backward_weight_samples(make: Make) -> Iterator[Arguments]:
    """Of the gradient of the weight."""
    for x, weight, ends, _ in samples(make):
        yield make(x.shape[0], weight.shape[1]), x, weight, ends


def _refused(name: str, make: Make, weight: Tensor, columns: int, *, first: Any) -> Any:
    """What all three operators refuse; `first` makes their arguments."""
    x, ends = make(4, columns), _ends(make, 1, 4)
    what = f"{name} must have shape \\[rows, {columns}\\].*got"
    yield BadInput(first(x.int(), weight, ends), f"{name} must be float32.*got int32")
    yield BadInput(first(x[:, 1:], weight, ends), rf"{what} \[4, {columns - 1}\]")
    yield BadInput(first(x[0], weight, ends), rf"{what} \[{columns}\]")
    shape = r"weight must have shape \[groups, out features, in features\], got \[3, 8\]"
    yield BadInput(first(x, weight[0], ends), shape)
    yield BadInput(first(x, weight.to(torch.int8), ends), "weight must be float32.*got int8")
    yield BadInput(first(x, weight, ends.float()), "ends must be int32 or int64, got float32")
    yield BadInput(first(x, weight, ends[:1]), r"ends must have shape \[2\].*got \[1\]")
    if make.dtype != torch.float64:
        wider = f"weight may be float64 only where {name} is"
        yield BadInput(first(x, weight.double(), ends), wider)


def bad_inputs(make: Make) -> Iterator[BadInput]:
    """What `grouped_linear` refuses."""
    x, weight, ends = make(4, 8), make(2, 3, 8), _ends(make, 1, 4)
    yield from _refused("x", make, weight, 8, first=lambda *given: (*given, None))
    sizes = r"bias must have shape \[2, 3\].*got \[3\]"
    yield BadInput((x, weight, ends, make(3)), sizes)
    yield BadInput((x, weight, ends, make(2, 3).int()), "bias must be float32.*got int32")


def backward_x_bad_inputs(make: Make) -> Iterator[BadInput]:
    """What the gradient of x refuses."""
    yield from _refused("grad", make, make(2, 3, 8), 3, first=lambda *given: given)


def backward_weight_bad_inputs(make: Make) -> Iterator[BadInput]:
    """What the gradient of the weight refuses."""
    grad, x, weight, ends = make(4, 3), make(4, 8), make(2, 3, 8), _ends(make, 1, 4)

    def first(grad: Tensor, *rest: Tensor) -> Arguments:
        return grad, x, *rest

    yield from _refused("grad", make, weight, 3, first=first)
    yield BadInput((grad, make(5, 8), weight, ends), "x must have as many rows as grad, 4, got 5")
    yield BadInput((grad, make(4, 7), weight, ends), r"x must have shape \[rows, 8\].*got \[4, 7\]")
    other = torch.float64 if make.dtype != torch.float64 else torch.float32
    yield BadInput((grad, x.to(other), weight, ends), "x must have the dtype of grad")


def benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    """Few rows and many, with a label."""
    for rows in (4, 64, 1024):
        ends = torch.arange(1, 33, device=make.device, dtype=torch.int32) * rows // 32
        yield f"{rows} rows, 32 groups, 1024x1024", (
            make(rows, 1024), make(32, 1024, 1024), ends, None,
        )  # fmt: skip
