"""Losses over classes that are spread over devices are those of the whole logits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from group import SIZE, Check
from oracle import assert_as_good_as_eager
from torch import Tensor

ROWS, FEATURES, CLASSES = 24, 16, 43
# ignore_index, then label smoothing, z-loss and cap.
SETTINGS = {
    "plain": (-100, 0.0, 0.0, 0.0),
    "z-loss and cap": (-100, 0.0, 0.1, 2.0),
    "smoothing": (3, 0.2, 0.0, 0.0),
    "all": (-100, 0.1, 0.1, 3.0),
}
REDUCTIONS = ("mean", "sum", "none")
KINDS = ("cross_entropy", "linear_cross_entropy")
NAMES = [
    *(f"{kind}, {setting}, {how}" for kind in KINDS for setting in SETTINGS for how in REDUCTIONS),
    "a target that is no class",
    "whole logits",
]


@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_spread_classes(name: str, passed):
    passed(name)


def checks() -> Iterator[Check]:
    from torch.distributed.tensor import init_device_mesh

    # Rows over the first dimension, classes over the second.
    mesh = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("rows", "classes"))
    for kind in KINDS:
        for setting, options in SETTINGS.items():
            for how in REDUCTIONS:
                check = partial(check_loss, mesh, kind, options, how)
                yield f"{kind}, {setting}, {how}", check
    yield "a target that is no class", partial(check_bad_target, mesh)
    yield "whole logits", partial(check_whole, mesh)


def check_loss(mesh: Any, kind: str, options: tuple, how: str) -> None:
    from torch.distributed.tensor import Replicate, Shard

    make = Make(torch.float64, seed=71)
    weight = make(CLASSES).abs() if options[1] > 0 else None
    target = torch.randint(CLASSES, (2, ROWS // 2), generator=torch.Generator().manual_seed(72))
    target[0, 2:4] = options[0]
    if kind == "cross_entropy":
        inputs = (make(2, ROWS // 2, CLASSES),)
        layouts = ([Shard(0), Shard(2)],)
    else:
        inputs = make(2, ROWS // 2, FEATURES), make(CLASSES, FEATURES), make(CLASSES)
        layouts = [Shard(0), Shard(1)], [Replicate(), Shard(0)], [Replicate(), Shard(0)]
    function = getattr(fusewheel.distributed, kind)
    spread = [distribute(t, mesh, layout) for t, layout in zip(inputs, layouts, strict=True)]
    targets = distribute(target, mesh, [Shard(0), Replicate()])
    got = evaluate(function, spread, targets, weight, options, how)
    whole = [t.clone().requires_grad_() for t in inputs]
    expected = evaluate(getattr(fusewheel, kind), whole, target, weight, options, how)
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert_as_good_as_eager(a.full_tensor(), b, b, f"result {k}")


def evaluate(function, inputs, target, weight, options, how) -> tuple[Tensor, ...]:
    ignored, *others = options
    first, *rest = inputs
    arguments = (first, *rest[:1], target, *rest[1:], weight, ignored, how, *others)
    if function is fusewheel.cross_entropy:
        arguments = (first.flatten(0, 1), target.flatten(), *arguments[2:])
    loss = function(*arguments)
    weights = 1 + torch.arange(loss.numel(), dtype=loss.dtype).view(loss.shape)
    if hasattr(loss, "placements"):
        weights = distribute(weights, loss.device_mesh, loss.placements)
    elif how == "none":
        loss = loss.view(target.shape)
        weights = weights.view(target.shape)
    gradients = torch.autograd.grad(loss, inputs, weights.detach())
    return loss.detach(), *gradients


def distribute(tensor: Tensor, mesh: Any, layout: Any) -> Tensor:
    from torch.distributed.tensor import distribute_tensor

    found = distribute_tensor(tensor, mesh, layout, src_data_rank=None)
    return found.requires_grad_(tensor.is_floating_point())


def check_bad_target(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    logits = distribute(Make()(3, CLASSES), mesh, [Replicate(), Shard(1)])
    with pytest.raises(RuntimeError, match=f"from 0 to {CLASSES - 1} or ignore_index, got 43"):
        fusewheel.distributed.cross_entropy(logits, torch.tensor([0, CLASSES, 1]))
    with pytest.raises(ValueError, match=r"target must have shape \[3\], got \[2\]"):
        fusewheel.distributed.cross_entropy(logits, torch.tensor([0, 1]))


def check_whole(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    whole, target = Make(torch.float64)(4, 3), torch.tensor([0, 2, -100, 1])
    expected = fusewheel.cross_entropy(whole, target)
    # Three classes leave a device of four without any.
    flat = mesh._flatten("all")
    for on, layout in ((mesh, [Shard(0), Replicate()]), (flat, [Shard(1)])):
        loss = fusewheel.distributed.cross_entropy(distribute(whole, on, layout), target)
        assert_as_good_as_eager(loss.full_tensor(), expected, expected)
