"""Sample inputs of linear_cross_entropy, and inputs that it must refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Arguments, BadInput, Make
from fusewheel.ops._rows import wide
from fusewheel.ops.loss._cross_entropy import random_classes


def samples(make: Make) -> Iterator[Arguments]:
    """Argument tuples that cover the options, shapes and strides."""

    def call(x: Tensor, weight: Tensor, *rest: Any, ignored: Sequence[int] = ()) -> Arguments:
        target = random_classes(make, x.shape[0], weight.shape[0], ignored)
        return x, weight, target, *rest

    every = (True, True, True, True)
    frozen_bias = (True, True, True, False)
    yield call(make(5, 3), make(7, 3), make(7), None, -100, 0.0, 0.0, 0.0, *every)
    yield call(
        *(make(4, 5), make(9, 5), None, make(9), -100, 0.1, 0.01, 2.0, *frozen_bias),
        ignored=(1, 3),
    )
    yield call(make(6, 4), make(5, 4), None, make(5), -100, 0.2, 0.1, 0.0, *(False,) * 4)
    # From here on with many elements: the largest error of a few elements varies too much.
    yield call(
        *(make(16, 24), make(40, 24), None, None, -100, 0.1, 0.0, 0.0, *frozen_bias), ignored=(2,)
    )
    yield call(make(20, 40), make(30, 40), make(30), make(30), -100, 0.0, 0.1, 3.0, *(False,) * 4)
    only_weight, all_but_weight = (True, False, True, False), (True, True, False, True)
    yield call(make(13, 24), make(35, 24), None, None, -100, 0.0, 0.0, 3.0, *only_weight)
    yield call(make(13, 24), make(36, 24), make(36), None, -100, 0.0, 0.0, 0.0, *all_but_weight)
    yield call(make(33, 48), make(507, 48), None, None, -100, 0.0, 1e-4, 30.0, *frozen_bias)
    yield call(make(65, 128), make(129, 128), make(129), None, -100, 0.1, 0.0, 0.0, *every)
    yield call(
        *(make.strided(44, 39), make.strided(59, 39), make.strided(59), make.strided(59)),
        *(-100, 0.2, 0.0, 0.0, *every),
        ignored=(3,),
    )
    yield call(
        *(make.transposed(19, 28), make.transposed(25, 28), None, None, -100, 0.0, 0.0, 0.0),
        *frozen_bias,
    )
    # More than one chunk on any backend.
    yield call(
        make(1100, 7), make(35, 7), make(35), None, -100, 0.1, 0.0, 0.0, *every, ignored=(7,)
    )
    yield call(make(3, 2), make(1, 2), None, None, -100, 0.0, 0.0, 0.0, *frozen_bias)
    yield call(make(14, 0), make(43, 0), make(43), None, -100, 0.0, 0.0, 0.0, *every)
    yield call(make(0, 4), make(6, 4), make(6), None, -100, 0.0, 0.0, 0.0, *every)
    yield call(make(0, 4), make(6, 4), None, None, -100, 0.0, 0.0, 0.0, *(False,) * 4)


def benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    """Arguments of the sizes that models use, each with a label."""
    for rows, features, classes in ((512, 512, 32000), (1024, 576, 49152)):
        yield (
            f"{rows}x{features}x{classes}",
            (
                *(make(rows, features), make(classes, features)),
                *(random_classes(make, rows, classes), None, None),
                *(-100, 0.0, 0.0, 0.0, True, make.requires_grad, make.requires_grad, False),
            ),
        )


def bad_inputs(make: Make) -> Iterator[BadInput]:
    """Argument tuples that the operator must refuse."""
    x, weight, target = make(4, 8), make(5, 8), random_classes(make, 4, 5)
    rest = (None, None, -100, 0.0, 0.0, 0.0, True, True, True, False)
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((x.to(torch.int32), weight, target, *rest), "x must be float32.*got int32")
    yield BadInput(
        (make(2, 2, 2), weight, target, *rest), r"x must have shape \[rows, in features\]"
    )
    yield BadInput((x, make(8), target, *rest), r"weight must have shape \[classes, ")
    yield BadInput((x, make(5, 7), target, *rest), r"weight must have shape \[5, 8\].*got \[5, 7\]")
    yield BadInput((x, make(0, 8), target, *rest), "at least one class")
    yield BadInput((x, weight.to(other), target, *rest), "weight must have the dtype of x")
    yield BadInput((x, weight, target.to(torch.int32), *rest), "target must be int64, got int32")
    yield BadInput((x, weight, target[:3], *rest), r"target must have shape \[4\].*got \[3\]")
    yield BadInput(
        (x, weight, target, make(4), *rest[1:]), r"bias must have shape \[5\].*got \[4\]"
    )
    for gains, message in (
        (make(6), r"class_weight must have shape \[5\].*got \[6\]"),
        (make(5).to(other), "class_weight must have the dtype of x"),
    ):
        yield BadInput((x, weight, target, None, gains, *rest[2:]), message)
    for smoothing, softcap, message in (
        (1.5, 0.0, "label_smoothing must be between 0 and 1"),
        (0.0, float("nan"), "softcap must be positive, or 0"),
    ):
        bad = (x, weight, target, None, None, -100, smoothing, 0.0, softcap, *rest[6:])
        yield BadInput(bad, message)


def backward_samples(make: Make) -> Iterator[Arguments]:
    """Argument tuples of the backward operator."""
    for x, *arguments in samples(make):
        *inputs, _, needs_x, needs_weight, needs_bias = arguments
        if needs_x or needs_weight or needs_bias:
            grad = wide(make(x.shape[0]).detach())
            yield grad, x, *inputs, needs_x, needs_weight, needs_bias


def backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    """Argument tuples that the backward operator must refuse."""
    x, weight, target = make(4, 8), make(5, 8), random_classes(make, 4, 5)
    rest = (None, None, -100, 0.0, 0.0, 0.0, True, True, False)
    grad = wide(make(4))
    yield BadInput((grad[:3], x, weight, target, *rest), r"grad must have shape \[4\]")
    yield BadInput((grad.to(torch.bfloat16), x, weight, target, *rest), "grad must be float")
    for bad in bad_inputs(make):
        *given, _, needs_x, needs_weight, needs_bias = bad.arguments
        yield BadInput((grad, *given, needs_x, needs_weight, needs_bias), bad.message)
