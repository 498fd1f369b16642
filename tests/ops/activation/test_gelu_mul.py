import fusewheel
import pytest
import torch
from fuzz import shapes
from oracle import assert_as_good_as_eager

FORMS = ("none", "tanh")


@pytest.mark.parametrize("form", FORMS)
def test_large_arguments_neither_overflow_nor_lose_their_sign(form: str):
    gate = torch.tensor([-1e30, -1e4, -200.0, -50.0, 50.0, 200.0, 1e4, 1e30])
    assert_as_good_as_eager(
        fusewheel.gelu_mul(gate, torch.ones(8), form),
        torch.nn.functional.gelu(gate, approximate=form),
        torch.nn.functional.gelu(gate.double(), approximate=form),
    )


def test_the_default_is_the_error_function():
    gate, up = torch.randn(7, 33), torch.randn(33)
    torch.testing.assert_close(fusewheel.gelu_mul(gate, up), torch.nn.functional.gelu(gate) * up)


@pytest.mark.parametrize("function", [fusewheel.gelu_mul, fusewheel.gelu_mul_packed])
def test_unknown_form_is_refused(function):
    with pytest.raises(ValueError, match=r"approximate must be 'none' or 'tanh', got 'erf'"):
        function(*[torch.ones(4)] * (2 if function is fusewheel.gelu_mul else 1), approximate="erf")


def test_backward_gives_the_broadcast_shape_to_both_gradients():
    grad, gate, up = torch.randn(2, 1), torch.randn(1), torch.randn(3)
    call = torch.ops.fusewheel.gelu_mul_backward
    for given in ((grad, gate, up), tuple(t.to("meta") for t in (grad, gate, up))):
        assert all(g.shape == (2, 3) for g in call(*given, False))
    operator = {o.name: o for o in fusewheel.ops.operators()}["gelu_mul_backward"]
    assert all(g.shape == (2, 3) for g in operator.reference(grad, gate, up, False))


FUZZ = {
    "gelu_mul": lambda d: (*shapes.pair(d), d.flag()),
    "gelu_mul_backward": lambda d: (*shapes.grad_and_pair(d), d.flag()),
    "gelu_mul_packed": lambda d: (shapes.packed(d), d.flag()),
    "gelu_mul_packed_backward": lambda d: (*shapes.grad_and_packed(d), d.flag()),
}
