import fusewheel
import pytest
import torch
from oracle import assert_as_good_as_eager

FORMS = ("none", "tanh")


@pytest.mark.parametrize("form", FORMS)
def test_reads_a_packed_projection_without_a_copy(form: str):
    packed = torch.randn(5, 2 * 507, requires_grad=True)
    results = []
    for function in (
        lambda gate, up: fusewheel.gelu_mul(gate, up, form),
        lambda gate, up: torch.nn.functional.gelu(gate, approximate=form) * up,
    ):
        y = function(*packed.chunk(2, dim=-1))
        assert y.is_contiguous()
        results.append((y, torch.autograd.grad(y.square().sum(), packed)[0]))
    torch.testing.assert_close(results[0], results[1])


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


def test_unknown_form_is_refused():
    with pytest.raises(ValueError, match=r"approximate must be 'none' or 'tanh', got 'erf'"):
        fusewheel.gelu_mul(torch.ones(4), torch.ones(4), "erf")
