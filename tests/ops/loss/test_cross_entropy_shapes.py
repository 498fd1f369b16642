"""Every shape that PyTorch's cross entropy takes: values and gradients as good as PyTorch's."""

from __future__ import annotations

from typing import Any

import fusewheel
import pytest
import torch
from neighbours import assert_call_as_good_as_eager
from torch import Tensor
from torch.nn import functional


def step(function: Any, logits: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """The loss, and the gradient that a loss of each row with a weight of its own gives."""
    leaf = logits.detach().requires_grad_()
    loss = function(leaf, *arguments, **options)
    slope = torch.arange(1, loss.numel() + 1, dtype=loss.dtype).view(loss.shape)
    return loss.detach(), torch.autograd.grad(loss, leaf, slope)[0]


def assert_like_torch(logits: Tensor, target: Tensor, **options: Any) -> None:
    def compute(function: Any, arguments: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        return step(function, *arguments[:2], **dict(zip(options, arguments[2:], strict=True)))

    functions = fusewheel.cross_entropy, functional.cross_entropy
    what = f"{list(logits.shape)}, {list(target.shape)}, {options}, result"
    assert_call_as_good_as_eager(compute, *functions, (logits, target, *options.values()), what)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (5, 7, 3), (2, 7, 4, 3), (2, 7, 1, 3, 2)], ids=str)
def test_all_options_with_every_shape(shape: tuple[int, ...], reduction: str, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(len(shape))
    logits = (torch.randn(shape, generator=generator) * 3).to(dtype)
    rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = torch.randint(7, rows, generator=generator)
    weight = (torch.rand(7, generator=generator) + 0.5).to(dtype)
    assert_like_torch(logits, target, reduction=reduction)
    options = {"weight": weight, "reduction": reduction, "label_smoothing": 0.1}
    assert_like_torch(logits, target, **options)
    if rows:
        target[0] = 3
        assert_like_torch(logits, target, ignore_index=3, **options)


def test_a_cap_and_a_z_loss_are_those_of_the_rows():
    logits = torch.randn(2, 7, 3, dtype=torch.float64)
    target = torch.randint(7, (2, 3))
    options = {"z_loss": 0.1, "softcap": 2.0, "reduction": "none"}
    got = step(fusewheel.cross_entropy, logits, target, **options)
    rows = [
        step(fusewheel.cross_entropy, logits[:, :, k], target[:, k], **options) for k in range(3)
    ]
    torch.testing.assert_close(got[0], torch.stack([loss for loss, _ in rows], -1))


def test_a_channels_last_image_of_logits():
    logits = torch.randn(2, 7, 4, 3).to(memory_format=torch.channels_last)
    assert_like_torch(logits, torch.randint(7, (2, 4, 3)))


@pytest.mark.parametrize(
    ("logits", "target"),
    [((2, 7, 4), (2, 4, 1)), ((2, 7, 4), (4, 2)), ((2, 7, 4), (8,)), ((7,), (1,)), ((7,), (7,))],
)
def test_a_target_of_another_shape_is_refused(logits: tuple[int, ...], target: tuple[int, ...]):
    with pytest.raises(RuntimeError, match="cross_entropy: target must have shape"):
        fusewheel.cross_entropy(torch.randn(logits), torch.zeros(target, dtype=torch.long))


def test_no_dimension_is_refused():
    with pytest.raises(RuntimeError, match="cross_entropy: input must have"):
        fusewheel.cross_entropy(torch.tensor(1.0), torch.tensor(0))


def test_targets_of_another_dtype_are_refused_by_name():
    for dtype in (torch.int16, torch.int32, torch.bool):
        with pytest.raises(RuntimeError, match="target must be int64"):
            fusewheel.cross_entropy(torch.randn(2, 3, 4), torch.zeros(2, 4, dtype=dtype))


def test_compiled_for_shapes_that_grow():
    compiled = torch.compile(fusewheel.cross_entropy, backend="aot_eager", fullgraph=True)
    for size in (3, 4, 5):
        logits, target = torch.randn(size, 7, size + 1), torch.randint(7, (size, size + 1))
        assert torch.equal(compiled(logits, target), fusewheel.cross_entropy(logits, target))


def test_scripted():
    scripted = torch.jit.script(fusewheel.cross_entropy)
    logits, target = torch.randn(2, 7, 3), torch.randint(7, (2, 3))
    assert torch.equal(scripted(logits, target), fusewheel.cross_entropy(logits, target))
    with pytest.raises(torch.jit.Error, match="target must have shape"):
        scripted(logits, target[:, :2])
