import fusewheel
import torch
from fuzz.shapes import pair


def test_is_the_same_as_torch_mul_in_every_dtype():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        a, b = torch.randn(507).to(dtype), torch.randn(507).to(dtype)
        assert torch.equal(fusewheel.mul(a, b), a * b)


def test_third_derivative():
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    value = fusewheel.mul(fusewheel.mul(x, x), x)
    for expected in (12.0, 12.0, 6.0):
        (value,) = torch.autograd.grad(value, x, create_graph=True)
        assert value.item() == expected


FUZZ = {"mul": pair}
