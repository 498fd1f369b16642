import fusewheel
import pytest
import torch
from fusewheel.ops.norm.rms_norm import GEMMA, LLAMA, TORCH, reference
from fuzz.draw import Draw
from fuzz.shapes import any_rows, epsilon
from oracle import ENOUGH, assert_as_good_as_eager

pytestmark = pytest.mark.matrix


def eager_and_exact(x, weight):
    """PyTorch's own, in float32 and in float64."""
    return [
        torch.nn.functional.rms_norm(a, weight.shape, b, 1e-6)
        for a, b in ((x, weight), (x.double(), weight.double()))
    ]


def test_torch_cast_is_torchs_rms_norm():
    x, weight = torch.randn(5, 255), torch.randn(255)
    torch.testing.assert_close(
        fusewheel.rms_norm(x, 255, weight, 1e-5),
        torch.nn.functional.rms_norm(x, (255,), weight, 1e-5),
    )


def test_llama_rounds_before_the_weight_and_gemma_after():
    x, weight = torch.randn(64, 507).bfloat16(), torch.randn(507).bfloat16()
    wide = x.double()
    h = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    found = {
        cast: fusewheel.rms_norm(x, 507, weight, 1e-6, cast=cast) for cast in ("llama", "gemma")
    }
    # The sum of squares is rounded too: h may be this much smaller or larger.
    bounds = h * (1 - 1e-6), h * (1 + 1e-6)
    wanted = {
        "llama": [weight * bound.bfloat16() for bound in bounds],
        "gemma": [(bound * (1 + weight.double())).bfloat16() for bound in bounds],
    }
    for cast, (low, high) in wanted.items():
        assert ((found[cast] == low) | (found[cast] == high)).all(), cast
        assert (low == high).float().mean() > 0.99, "nearly all elements have one right value"


def test_unknown_cast_is_refused():
    with pytest.raises(ValueError, match=r"cast must be 'llama', 'gemma' or 'torch', got 'bert'"):
        fusewheel.rms_norm(torch.ones(4), 4, cast="bert")


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
    assert_as_good_as_eager(
        fusewheel.rms_norm(wide, 2**20, weight, 1e-6), *eager_and_exact(wide, weight)
    )
    # Of one sign, so that nothing cancels in the sum over rows. One such sum may be exact by luck.
    sums = [_gradients_of_the_gain(rows=2**12) for _ in range(2 * ENOUGH)]
    got, eager, exact = map(torch.cat, zip(*sums, strict=True))
    assert_as_good_as_eager(got, eager, exact, "gradient of the weight")


def _gradients_of_the_gain(rows: int) -> list[torch.Tensor]:
    """Ours, eager's and the exact one, for rows of one element."""
    tall, seed = torch.randn(rows, 1).abs(), torch.rand(rows, 1)
    gain = torch.randn(1, requires_grad=True)
    return [
        torch.autograd.grad(y, gain, seed.to(y.dtype))[0]
        for y in (fusewheel.rms_norm(tall, 1, gain, 1e-6), *eager_and_exact(tall, gain))
    ]


def test_nan_stays_in_its_row():
    x = torch.randn(4, 33)
    x[1, 7] = float("nan")
    y = fusewheel.rms_norm(x, 33, torch.ones(33))
    assert y[1].isnan().all() and not y[[0, 2, 3]].isnan().any()


def test_parts_of_a_gradient_that_are_out_of_range_on_their_own():
    """Those of y and of rstd are larger than any float16, and of opposite signs."""

    def parts(dtype: torch.dtype) -> list[torch.Tensor]:
        x = (torch.ones(4, dtype=torch.float16) * 1e-3).to(dtype).requires_grad_()
        y, rstd = torch.ops.fusewheel.rms_norm(x, torch.ones_like(x), 1e-6, 2)
        seeds = torch.full_like(y, 350), torch.ones_like(rstd)
        return [
            torch.autograd.grad(outputs, x, seed, retain_graph=True)[0]
            for outputs, seed in zip(((y, rstd), y, rstd), (seeds, *seeds), strict=True)
        ]

    got, of_y, of_rstd = parts(torch.float16)
    assert (of_y == torch.inf).all() and (of_rstd == -torch.inf).all()
    exact = parts(torch.float64)[0]
    assert_as_good_as_eager(got, exact.half(), exact)


def any_arguments(d: Draw):
    shape = any_rows(d)
    return d.tensor(*shape), d.tensor(shape[-1]), epsilon(d), d.choice(LLAMA, GEMMA, TORCH)


def any_backward_arguments(d: Draw):
    x, weight, eps, cast = any_arguments(d)
    rstd = d.lay(reference(x, weight, eps, cast)[1], apart=True)
    return d.tensor(*x.shape), x, weight, rstd, cast


FUZZ = {"rms_norm": any_arguments, "rms_norm_backward": any_backward_arguments}
