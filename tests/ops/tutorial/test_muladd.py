import fusewheel
import pytest
import torch
from fuzz.draw import Draw
from fuzz.shapes import pair
from torch import Tensor

pytestmark = pytest.mark.matrix


def test_rounds_once_where_eager_rounds_twice():
    a = torch.tensor([1.0234375], dtype=torch.bfloat16)
    exact = a.double() * a.double() - 1.0
    got = fusewheel.muladd(a, a, -1.0)
    assert torch.equal(got, exact.to(torch.bfloat16))
    assert not torch.equal(a * a - 1.0, got)


def test_every_argument_lands_where_it_belongs():
    a, b = torch.tensor([2.0]), torch.tensor([3.0])
    assert fusewheel.muladd(a, b, 0.125).item() == 6.125


def test_gradient_sums_over_broadcast_dimensions():
    a = torch.randn(3, 4, requires_grad=True)
    b = torch.randn(4, requires_grad=True)
    fusewheel.muladd(a, b, 1.0).sum().backward()
    torch.testing.assert_close(a.grad, b.detach().expand(3, 4))
    torch.testing.assert_close(b.grad, a.detach().sum(0))


def test_backward_runs_on_the_mul_operator():
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    a = torch.randn(3, requires_grad=True)
    out: Tensor = fusewheel.muladd(a, a.detach(), 1.0)
    with Watch():
        out.sum().backward()
    assert "fusewheel.mul.default" in seen


def any_arguments(d: Draw):
    return *pair(d), d.choice(0.5, 0.0, -3.0)


FUZZ = {"muladd": any_arguments}
