"""Losses over classes that are spread over devices are those of the whole logits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from group import SIZE, Check
from oracle import assert_program_as_good_as_eager
from torch import Tensor

pytestmark = pytest.mark.long

ROWS, FEATURES, CLASSES = 24, 16, 43
# ignore_index, then label smoothing, z-loss and cap.
SETTINGS = {
    "plain": (-100, 0.0, 0.0, 0.0),
    "weights": (-100, 0.0, 0.0, 0.0),
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
    "former arguments",
    *(f"{kind}, refusals" for kind in KINDS),
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
        for setting in SETTINGS:
            for how in REDUCTIONS:
                check = partial(check_loss, mesh, kind, setting, how)
                yield f"{kind}, {setting}, {how}", check
    yield "a target that is no class", partial(check_bad_target, mesh)
    yield "whole logits", partial(check_whole, mesh)
    yield "former arguments", partial(check_former, mesh)
    for kind in KINDS:
        yield f"{kind}, refusals", partial(check_refusals, mesh, kind)


def check_loss(mesh: Any, kind: str, setting: str, how: str) -> None:
    from torch.distributed.tensor import Replicate, Shard

    options = SETTINGS[setting]
    make = Make(torch.float64, seed=71)
    target = torch.randint(CLASSES, (2, ROWS // 2), generator=torch.Generator().manual_seed(72))
    weight = make(CLASSES).abs() if options[1] > 0 else None
    if setting == "weights":
        # Without label smoothing no row reads the weight of a class that is not its target.
        read = torch.zeros(CLASSES, dtype=torch.bool).scatter(0, target.flatten(), True)
        weight = make(CLASSES).abs().where(read, torch.nan)
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
        assert_program_as_good_as_eager(a.full_tensor(), b, b, f"result {k}")


def evaluate(function, inputs, target, weight, options, how) -> tuple[Tensor, ...]:
    ignored, *others = options
    first, *rest = inputs
    names = "label_smoothing", "z_loss", "softcap"
    named = dict(zip(names, others, strict=True), ignore_index=ignored, reduction=how)
    arguments = (first, *rest[:1], target, *rest[1:], weight)
    if function is fusewheel.cross_entropy:
        arguments = (first.flatten(0, 1), target.flatten(), *arguments[2:])
    loss = function(*arguments, **named)
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
    x, weight = (distribute(Make()(n, 8), mesh, layout) for n, layout in spread_inputs())
    with pytest.raises(RuntimeError, match=r"^linear_cross_entropy: target must be a class from 0"):
        fusewheel.distributed.linear_cross_entropy(x, weight, torch.tensor([0, CLASSES, 1]))


def spread_inputs() -> tuple[tuple[int, Any], ...]:
    """The first size and the layout of `x` and of a weight whose classes are spread."""
    from torch.distributed.tensor import Replicate, Shard

    return (3, [Replicate(), Replicate()]), (CLASSES, [Replicate(), Shard(0)])


def check_refusals(mesh: Any, kind: str) -> None:
    """What the operator refuses on one device is refused here, in the same words."""
    from torch.distributed.tensor import Replicate, Shard

    def spread(argument: Any, name: str) -> Any:
        if name not in ("logits", "x", "weight", "bias") or not isinstance(argument, Tensor):
            return argument
        cut = argument.dim() - 1 if name == "logits" else 0
        layout = [Replicate(), Replicate() if name == "x" else Shard(cut)]
        if kind == "cross_entropy" and name == "weight":
            return argument
        return distribute(argument, mesh, layout)

    make = Make()
    good: dict[str, Any] = {"target": torch.tensor([0, 5, 1])}
    if kind == "cross_entropy":
        good |= {"logits": make(3, CLASSES)}
    else:
        good |= {"x": make(3, 8), "weight": make(CLASSES, 8), "bias": make(CLASSES)}
    factors = "weight" if kind == "cross_entropy" else "class_weight"
    wrong: list[dict[str, Any]] = [
        {"target": torch.tensor([0, 1])},
        {"target": torch.tensor([[0], [1], [2]])},
        {"target": good["target"].int()},
        {factors: make(CLASSES + 1)},
        {factors: torch.ones(CLASSES, dtype=torch.int64)},
        {"label_smoothing": 1.5},
        {"softcap": -1.0},
        {"reduction": "x"},
    ]
    if kind == "cross_entropy":
        wrong += [{"logits": torch.ones(3, CLASSES, dtype=torch.int64)}]
    else:
        wrong += [
            {"weight": make(CLASSES, 9)},
            {"weight": make(CLASSES)},
            {"bias": make(CLASSES + 1)},
            {"x": torch.ones(3, 8, dtype=torch.int64)},
        ]
    for change in wrong:
        given = good | change
        # The function has PyTorch's name for the logits.
        public = {"input" if n == "logits" else n: argument for n, argument in given.items()}
        want = refusal(getattr(fusewheel, kind), public)
        assert str(want).startswith(f"{kind}: "), want
        distributed = {name: spread(argument, name) for name, argument in given.items()}
        got = refusal(getattr(fusewheel.distributed, kind), distributed)
        assert type(got) is type(want), (change, got, want)
        words = re.sub(r"\binput\b(?!')", "logits", str(want)) if "input" in public else str(want)
        assert str(got) == words, change
    with pytest.raises(RuntimeError, match=f"^{kind}: {factors} must not require a gradient"):
        refused = {name: spread(argument, name) for name, argument in good.items()}
        getattr(fusewheel.distributed, kind)(**refused, **{factors: make(CLASSES).requires_grad_()})


def refusal(function: Any, given: dict[str, Any]) -> Exception:
    with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
        function(**given)
    return caught.value


def check_whole(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    whole, target = Make(torch.float64)(4, 3), torch.tensor([0, 2, -100, 1])
    expected = fusewheel.cross_entropy(whole, target)
    # Three classes leave a device of four without any.
    flat = mesh._flatten("all")
    for on, layout in ((mesh, [Shard(0), Replicate()]), (flat, [Shard(1)])):
        loss = fusewheel.distributed.cross_entropy(distribute(whole, on, layout), target)
        assert_program_as_good_as_eager(loss.full_tensor(), expected, expected)


def check_former(mesh: Any) -> None:
    """PyTorch's `size_average` and `reduce` mean a reduction, whatever `reduction` says."""
    from torch.distributed.tensor import Replicate, Shard

    logits = distribute(Make()(3, CLASSES), mesh, [Replicate(), Shard(1)])
    target, loss = torch.tensor([0, 5, 1]), fusewheel.distributed.cross_entropy
    for size_average in (None, True, False):
        for reduce in (None, True, False):
            means = "none" if reduce is False else "sum" if size_average is False else "mean"
            if size_average is reduce is None:
                continue
            got = loss(logits, target, reduction="sum", size_average=size_average, reduce=reduce)
            assert torch.equal(
                got.full_tensor(), loss(logits, target, reduction=means).full_tensor()
            )
