"""Sample inputs of cross_entropy, and inputs that it must refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make
from fusewheel.ops._rows import wide


def random_classes(make: Make, rows: int, classes: int, ignored: Sequence[int] = ()) -> Tensor:
    """Targets for samples; the rows in `ignored` have -100."""
    generator = torch.Generator().manual_seed(rows)
    target = torch.randint(classes, (rows,), generator=generator)
    target[list(ignored)] = -100
    return target.to(make.device)


def samples(make: Make) -> Iterator[Arguments]:
    """Argument tuples that cover the options, shapes and strides."""

    def call(
        logits: Tensor, *settings: Any, ignored: Sequence[int] = (), grad: Tensor | None = None
    ) -> Arguments:
        rows, classes = logits.shape
        return logits, random_classes(make, rows, classes, ignored), *settings, grad

    yield call(make(5, 7), None, -100, 0.0, 0.0, 0.0, True)
    yield call(make(4, 9), make(9), -100, 0.1, 0.01, 2.0, True, ignored=(1, 3))
    yield call(make(3, 507), None, -100, 0.1, 0.0, 0.0, True, ignored=(2,))
    yield call(make(33, 1024, scale=5.0), None, -100, 0.0, 1e-4, 30.0, True)
    yield call(make(6, 5), make(5), -100, 0.0, 0.1, 0.0, False)
    yield call(make.strided(4, 19), make.strided(19), -100, 0.2, 0.0, 0.0, True, ignored=(3,))
    yield call(make.transposed(9, 8), None, -100, 0.0, 0.0, 1.0, True)
    yield call(make(4, 130)[:, 2:], None, -100, 0.0, 0.0, 0.0, True)
    yield call(make(3, 1), None, -100, 0.0, 0.0, 0.0, True)
    yield call(make(0, 6), None, -100, 0.0, 0.0, 0.0, True)
    ignored = torch.tensor([1, 2, 0], device=make.device)
    yield make(3, 4), ignored, None, 2, 0.0, 0.0, 0.0, True, None
    yield call(make(3, 50, scale=1e3), None, -100, 0.1, 0.0, 0.0, True)
    # What the losses count for.
    yield call(make(33, 130), None, -100, 0.0, 0.0, 0.0, True, grad=_per_row(make, 33))
    given = _per_row(make, 1).expand(4)
    yield call(make(4, 9), make(9), -100, 0.1, 0.01, 2.0, True, ignored=(1,), grad=given)


def _per_row(make: Make, rows: int) -> Tensor:
    return wide(make(rows).detach()).requires_grad_(make.requires_grad)


def benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    """Arguments of the public function and of PyTorch's, for vocabularies of models."""
    for rows, size in ((256, 32000), (1024, 49152), (256, 128256), (128, 151936)):
        target = random_classes(make, rows, size)
        yield f"{rows}x{size}", (make(rows, size), target)


def bad_inputs(make: Make) -> Iterator[BadInput]:
    """Argument tuples that it must refuse."""
    x, target, rest = make(4, 8), random_classes(make, 4, 8), (-100, 0.0, 0.0, 0.0, True)
    yield BadInput((x.to(torch.int32), target, None, *rest), "logits must be float32.*got int32")
    yield BadInput(
        (make(2, 2, 2), target, None, *rest), r"logits must have shape \[rows, classes\]"
    )
    yield BadInput((make(4, 0), target, None, *rest), "at least one class")
    yield BadInput((x, target.to(torch.int32), None, *rest), "target must be int64, got int32")
    yield BadInput((x, target[:3], None, *rest), r"target must have shape \[4\].*got \[3\]")
    yield BadInput((x, target, make(7), *rest), r"weight must have shape \[8\].*got \[7\]")
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((x, target, make(8).to(other), *rest), "weight must have the dtype of logits")
    for smoothing in (-0.1, 1.1, float("nan")):
        bad = (x, target, None, -100, smoothing, 0.0, 0.0, True)
        yield BadInput(bad, "label_smoothing must be between 0 and 1")
    row = wide(make(4))
    yield BadInput((x, target, None, *rest, row[:3]), r"grad must have shape \[4\]")
    yield BadInput((x, target, None, *rest, row.to(torch.bfloat16)), "grad must be float")
    bad = (x, target, None, -100, 0.0, 0.0, -1.0, True)
    yield BadInput(bad, "softcap must be positive, or 0")


def backward_samples(make: Make) -> Iterator[Arguments]:
    """Argument tuples of the backward operator."""
    for x in (make(5, 7), make(3, 507), make.strided(4, 19), make.transposed(3, 8), make(0, 6)):
        yield wide(make(x.shape[0]).detach()), x
    yield wide(make(1).detach()).expand(4), make(4, 9)


def backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    """Argument tuples that the backward operator must refuse."""
    x = make(4, 8)
    row = wide(make(4))
    yield BadInput((row[:3], x), r"grad must have shape \[4\]")
    yield BadInput((row.to(torch.bfloat16), x), "grad must be float")
    yield BadInput((row[:1], x), r"grad must have shape \[4\].*got \[1\]")
    yield BadInput((row, row), r"grad_logits must have shape \[rows, classes\]")
