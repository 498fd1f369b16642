"""The judge of numbers: a kernel may err twice as much as eager PyTorch does in the same dtype."""

from __future__ import annotations

import os
from typing import Any

import fusewheel
import torch
from torch import Tensor

Step = list[Tensor]
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def emulated() -> bool:
    """Whether CUDA kernels run on the CPU."""
    return any(backend.facts.get("cuda") == "emulated" for backend in fusewheel.backends())


def slow() -> bool:
    """Whether the kernels, or the processor itself (`nox -s neon`), are emulated."""
    return emulated() or "QEMU_CPU" in os.environ


def tensors_of(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def to_dtype(arguments: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(
        a.detach().to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in arguments
    )


def assert_as_good_as_eager(got: Tensor, eager: Tensor, exact: Tensor, what: str = "") -> None:
    """`exact` is the float64 result; the floor is one unit in the last place of each element.

    float64 itself has nothing more exact beside it: there the floor is 64 units of the largest
    element (of 1 at the least), which says that the arithmetic was float64 and not less.
    """
    assert got.shape == eager.shape, f"{what}: shape {tuple(got.shape)} not {tuple(eager.shape)}"
    assert got.dtype == eager.dtype, f"{what}: dtype {got.dtype} not {eager.dtype}"
    if got.numel() == 0:
        return
    wide, base, exact = got.double(), eager.double(), exact.double()
    finite = base.isfinite() & exact.isfinite()
    torch.testing.assert_close(
        wide[~finite], base[~finite], equal_nan=True, msg=lambda m: f"{what}: specials: {m}"
    )
    wide, base, exact = wide[finite], base[finite], exact[finite]
    if wide.numel() == 0:
        return
    units = 64 if got.dtype == torch.float64 else 1
    info = torch.finfo(got.dtype)
    floor = units * (exact.abs() * info.eps + info.smallest_normal * info.eps)
    if got.dtype == torch.float64:
        floor = floor.max().clamp(min=units * info.eps)
    allowed = 2 * (base - exact).abs().max() + floor
    excess = (wide - exact).abs() - allowed
    worst = int(excess.argmax())
    assert bool((excess <= 0).all()), (
        f"{what}: got {wide[worst].item()}, exact {exact[worst].item()}, error "
        f"{(wide - exact).abs()[worst].item():.3e}, eager's worst "
        f"{(base - exact).abs().max().item():.3e}"
    )


def assert_step_as_good_as_eager(got: Step, eager: Step, exact: Step) -> None:
    """Logits, loss and the vector of all gradients of a training step."""
    for a, b in zip(got, eager, strict=True):
        assert a.dtype == b.dtype
    assert_as_good_as_eager(got[0], eager[0], exact[0], "logits")
    # The loss is judged beside the logits: that eager's single number is exact is chance.
    logits, loss = ((eager[i].double() - exact[i].double()).abs().max() for i in (0, 1))
    # Where a model upcasts its logits to float32, the exact loss is rounded to that as well.
    units = 2 if exact[1].dtype == torch.float32 else 1
    floor = units * torch.finfo(got[1].dtype).eps * exact[1].abs()
    assert (got[1].double() - exact[1]).abs() <= 2 * max(logits, loss) + floor, "loss"
    # By its length: which single error is the largest one is a matter of chance.
    assert (got[2] - exact[2]).norm() <= 2 * (eager[2] - exact[2]).norm(), "gradients"
