"""The installed backend: found by its entry point, its kernels run on tensors of its device."""

from __future__ import annotations

import fusewheel
import fusewheel_toy
import pytest
import torch
import torch.nn.functional as F


def test_it_is_found() -> None:
    (backend,) = (b for b in fusewheel.backends() if b.name == "toy")
    assert backend.loaded and backend.device == "toy"
    assert backend.version == fusewheel.__version__


def test_a_kernel_runs_on_the_device() -> None:
    a, b = torch.randn(3, 4), torch.randn(4)
    before = fusewheel_toy.launches()
    y = fusewheel.mul(a.to("toy"), b.to("toy"))
    assert y.device == torch.device("toy", 0) and fusewheel_toy.launches() == before + 1
    assert torch.equal(y.cpu(), a * b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_is_there_already(dtype: torch.dtype) -> None:
    """No line of the package is about autograd."""
    values = torch.randn(2, 5, 7, dtype=dtype).transpose(1, 2)
    ours = [v.to("toy").requires_grad_() for v in values]
    theirs = [v.clone().requires_grad_() for v in values]
    before = fusewheel_toy.launches()
    y, expected = fusewheel.silu_mul(*ours), F.silu(theirs[0]) * theirs[1]
    torch.testing.assert_close(y.cpu(), expected)
    y.sum().backward()
    expected.sum().backward()
    assert fusewheel_toy.launches() == before + 2
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None and one.grad.device.type == "toy"
        torch.testing.assert_close(one.grad.cpu(), other.grad)


def test_an_operator_without_a_kernel_runs_its_reference() -> None:
    x, weight = torch.randn(3, 8), torch.rand(8)
    before = fusewheel_toy.launches()
    y = fusewheel.rms_norm(x.to("toy"), [8], weight.to("toy"), 1e-6)
    torch.testing.assert_close(y.cpu(), F.rms_norm(x, (8,), weight, 1e-6))
    assert fusewheel_toy.launches() == before


def test_a_program_is_traced_with_the_operators() -> None:
    gate, up = torch.randn(4, 6), torch.randn(4, 6)
    compiled = torch.compile(fusewheel.silu_mul, fullgraph=True, backend="aot_eager")
    before = fusewheel_toy.launches()
    y = compiled(gate.to("toy"), up.to("toy"))
    torch.testing.assert_close(y.cpu(), F.silu(gate) * up)
    assert fusewheel_toy.launches() == before + 1


def test_errors_are_those_of_the_other_devices() -> None:
    x = torch.randn(3, device="toy")
    with pytest.raises(RuntimeError, match=r"mul: b of shape \[4\] must broadcast with a"):
        fusewheel.mul(x, torch.randn(4, device="toy"))
    with pytest.raises(RuntimeError, match="float32 and float64 only"):
        fusewheel.mul(x.bfloat16(), x.bfloat16())
