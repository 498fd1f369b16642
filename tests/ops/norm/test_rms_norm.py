import fusewheel
import pytest
import torch
from fusewheel.ops.norm.rms_norm import GEMMA, LLAMA, TORCH, reference
from fuzz.draw import Draw
from fuzz.shapes import any_rows, epsilon

pytestmark = pytest.mark.matrix


def test_torch_cast_is_torchs_rms_norm():
    x, weight = torch.randn(5, 255), torch.randn(255)
    torch.testing.assert_close(
        fusewheel.rms_norm(x, weight, 1e-5, "torch"),
        torch.nn.functional.rms_norm(x, (255,), weight, 1e-5),
    )


def test_llama_rounds_before_the_weight_and_gemma_after():
    x, weight = torch.randn(64, 507).bfloat16(), torch.randn(507).bfloat16()
    wide = x.float()
    h = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    llama = fusewheel.rms_norm(x, weight, cast="llama")
    gemma = fusewheel.rms_norm(x, weight, cast="gemma")
    # Both may differ from this by the last bit of rstd, which moves few elements.
    assert (llama == weight * h.bfloat16()).float().mean() > 0.99
    assert (gemma == (h * (1 + weight.float())).bfloat16()).float().mean() > 0.99


def test_unknown_cast_is_refused():
    with pytest.raises(ValueError, match=r"cast must be 'llama', 'gemma' or 'torch', got 'bert'"):
        fusewheel.rms_norm(torch.ones(4), torch.ones(4), cast="bert")


def test_rstd_is_an_output_with_a_gradient_of_its_own():
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.ones(8, dtype=torch.float64)
    rstd = torch.ops.fusewheel.rms_norm(x, weight, 1e-6, 0)[1]
    torch.testing.assert_close(rstd, (x.pow(2).mean(-1) + 1e-6).rsqrt())
    assert torch.autograd.gradcheck(
        lambda x: torch.ops.fusewheel.rms_norm(x, weight, 1e-6, 0)[1], x
    )


def test_one_huge_row_and_many_tiny_ones():
    wide, weight = torch.randn(1, 2**20), torch.randn(2**20)
    torch.testing.assert_close(
        fusewheel.rms_norm(wide, weight), torch.nn.functional.rms_norm(wide, (2**20,), weight, 1e-6)
    )
    tall = torch.randn(2**16, 1, requires_grad=True)
    gain = torch.randn(1, requires_grad=True)
    fusewheel.rms_norm(tall, gain).sum().backward()
    want = torch.autograd.grad(
        torch.nn.functional.rms_norm(tall.double(), (1,), gain.double(), 1e-6).sum(), gain
    )[0]
    torch.testing.assert_close(gain.grad, want.float(), rtol=1e-4, atol=1e-3)


def test_nan_stays_in_its_row():
    x = torch.randn(4, 33)
    x[1, 7] = float("nan")
    y = fusewheel.rms_norm(x, torch.ones(33))
    assert y[1].isnan().all() and not y[[0, 2, 3]].isnan().any()


def test_parts_of_a_gradient_that_are_out_of_range_on_their_own():
    x = torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=torch.float16) * 1e-3
    x.requires_grad_()
    y, rstd = torch.ops.fusewheel.rms_norm(x, x.detach().abs() * 1000, 1e-6, 2)
    grad_y = torch.tensor([6e4, -6e4, 6e4, -6e4], dtype=torch.float16)
    got = torch.autograd.grad((y, rstd), x, (grad_y, torch.tensor(480.0)))[0]
    assert not got.isnan().any()


def any_arguments(d: Draw):
    shape = any_rows(d)
    return d.tensor(*shape), d.tensor(shape[-1]), epsilon(d), d.choice(LLAMA, GEMMA, TORCH)


def any_backward_arguments(d: Draw):
    x, weight, eps, cast = any_arguments(d)
    rstd = d.lay(reference(x, weight, eps, cast)[1], apart=True)
    return d.tensor(*x.shape), x, weight, rstd, cast


FUZZ = {"rms_norm": any_arguments, "rms_norm_backward": any_backward_arguments}
