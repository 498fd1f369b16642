"""Sample inputs of linear and its backward operators, those to benchmark and to refuse."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fusewheel.dispatch.operator import Arguments, BadInput, Make


def samples(make: Make) -> Iterator[Arguments]:
    yield make(255, 123), make(507, 123), make(507)
    yield make(3, 7), make(5, 7), make(5)
    yield make(2, 3, 5), make(4, 5), None
    yield make(33), make(9, 33), make(9)
    yield make(1, 2048), make(70, 2048), None
    yield make(4, 96), make(33, 96), make(33)
    yield make(17, 800), make(129, 800), None
    yield make.strided(6, 9), make.strided(8, 9), make.strided(8)
    yield make.transposed(6, 9), make.transposed(8, 9), None
    yield make(1, 8).expand(4, 8), make(3, 8), None
    yield make(0, 8), make(3, 8), make(3)
    yield make(2, 0, 8), make(3, 8), None
    yield make(4, 0), make(3, 0), make(3)
    yield make(4, 8), make(0, 8), None


def backward_x_samples(make: Make) -> Iterator[Arguments]:
    for x, weight, _ in samples(make):
        yield make(*x.shape[:-1], weight.shape[0]), weight


def backward_weight_samples(make: Make) -> Iterator[Arguments]:
    for x, weight, _ in samples(make):
        yield make(*x.shape[:-1], weight.shape[0]), x, weight


def bad_inputs(make: Make) -> Iterator[BadInput]:
    x, weight, bias = make(4, 8), make(3, 8), make(3)
    yield BadInput((x.to(torch.int32), weight, None), "x must be float32.*got int32")
    yield BadInput((x, weight.to(torch.int8), None), "weight must be float32.*got int8")
    yield BadInput((x, make(8), None), r"weight must be a matrix.*got shape \[8\]")
    yield BadInput((make(4, 7), weight, None), r"x must have 8 elements.*got shape \[4, 7\]")
    yield BadInput((make(), weight, None), r"x must have 8 elements.*got shape \[\]")
    yield BadInput((x, weight, make(4)), r"bias must have shape \[3\].*got \[4\]")
    yield BadInput((x, weight, bias.to(torch.int64)), "bias must be float32.*got int64")
    if x.dtype != torch.float64:
        yield BadInput((x, weight.double(), None), "weight may be float64 only where x is")


def backward_x_bad_inputs(make: Make) -> Iterator[BadInput]:
    grad, weight = make(4, 3), make(3, 8)
    yield BadInput((grad.to(torch.int32), weight), "grad must be float32.*got int32")
    yield BadInput((make(), weight), r"grad must have 3 elements.*got shape \[\]")
    yield BadInput((grad, make(8)), r"weight must be a matrix.*got shape \[8\]")
    yield BadInput((grad, weight.to(torch.int8)), "weight must be float32.*got int8")
    yield BadInput((make(4, 5), weight), r"grad must have 3 elements.*got shape \[4, 5\]")


def backward_weight_bad_inputs(make: Make) -> Iterator[BadInput]:
    grad, x, weight = make(4, 3), make(4, 8), make(3, 8)
    yield BadInput((grad.to(torch.int32), x, weight), "grad must be float32.*got int32")
    yield BadInput((make(4, 5), x, weight), r"grad must have 3 elements.*got shape \[4, 5\]")
    yield BadInput((grad, x, make(8)), r"weight must be a matrix.*got shape \[8\]")
    yield BadInput((grad, x, weight.to(torch.int8)), "weight must be float32.*got int8")
    yield BadInput((grad, make(4, 7), weight), r"x must have 8 elements.*got shape \[4, 7\]")
    yield BadInput((grad, make(5, 8), weight), r"x must have as many rows as grad, 4, got 5")
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((grad, x.to(other), weight), "x must have the dtype of grad")


SHAPES = ((2048, 2048), (576, 1536), (2048, 8192))


def benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows in (1, 4, 16, 64, 256):
        for outputs, inputs in SHAPES:
            yield f"{rows}x{inputs}x{outputs}", (make(rows, inputs), make(outputs, inputs), None)
