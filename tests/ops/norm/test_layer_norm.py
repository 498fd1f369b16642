import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fusewheel.ops.norm.layer_norm import reference
from fuzz.draw import Draw
from fuzz.shapes import any_rows, epsilon
from oracle import assert_as_good_as_eager, assert_program_as_good_as_eager, to_dtype

PARAMETERS = [(True, True), (True, False), (False, True), (False, False)]


def eager(x, weight, bias, eps=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def inputs(make, rows, size, parameters=(True, True)):
    return make(rows, size), *(make(size) if has else None for has in parameters)


def norm(x, weight=None, bias=None):
    return fusewheel.layer_norm(x, x.shape[-1], weight, bias)


def gradients(function, arguments, seed):
    leaves = [None if t is None else t.detach().requires_grad_() for t in arguments]
    function(*leaves).backward(seed)
    return [t.grad for t in leaves if t is not None]


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("size", [123, 255, 507, 2**13 + 5])
def test_as_good_as_torchs_layer_norm(dtype, parameters, size):
    make = Make(dtype)
    arguments = inputs(make, 67, size, parameters)
    exact = to_dtype(arguments, torch.float64)
    assert_as_good_as_eager(norm(*arguments), eager(*arguments), eager(*exact))
    seed = make(67, size)
    for k, triple in enumerate(
        zip(
            gradients(norm, arguments, seed),
            gradients(eager, arguments, seed),
            gradients(eager, exact, seed.double()),
            strict=True,
        )
    ):
        assert_as_good_as_eager(*triple, what=f"gradient {k}")


@pytest.mark.parametrize("offset", [1e3, -3e4])
@pytest.mark.parametrize("size", [255, 2**14])
def test_the_variance_survives_a_large_mean(offset, size):
    # The mean's rounding moves a whole row: enough rows for eager not to be lucky in all.
    x = torch.randn(67, size) + offset
    y, _, rstd = torch.ops.fusewheel.layer_norm(x, None, None, 1e-5)
    exact, _, exact_rstd = torch.ops.fusewheel.layer_norm(x.double(), None, None, 1e-5)
    assert_as_good_as_eager(y, eager(x, None, None), exact)
    # mean(x ** 2) - mean ** 2 would be off by the square of the offset.
    bound = abs(offset) * torch.finfo(torch.float32).eps
    torch.testing.assert_close(rstd.double(), exact_rstd, rtol=bound, atol=0)


def test_a_row_of_one_element_is_the_bias_and_has_no_slope(dtype):
    arguments = inputs(Make(dtype), 67, 1)
    bias = arguments[2].expand(67, 1)
    assert torch.equal(norm(*arguments), bias)
    assert not gradients(norm, arguments, torch.full_like(bias, 0.3))[0].any()


def test_a_constant_row_is_the_bias_whatever_its_size():
    for value in (3.0, 1e30):
        x, bias = torch.full((2, 255), value), torch.randn(255)
        torch.testing.assert_close(norm(x, None, bias), bias.expand(2, 255))


def test_one_huge_row_many_tiny_ones_and_none():
    make = Make()
    for rows, size in ((1, 2**20), (2**16, 1), (0, 255)):
        # Of one sign, so that nothing cancels in the sums over rows.
        arguments, seed = inputs(make, rows, size), make(rows, size).abs()
        exact = to_dtype(arguments, torch.float64)
        assert_program_as_good_as_eager(norm(*arguments), eager(*arguments), eager(*exact))
        for k, triple in enumerate(
            zip(
                gradients(norm, arguments, seed),
                gradients(eager, arguments, seed),
                gradients(eager, exact, seed.double()),
                strict=True,
            )
        ):
            assert_program_as_good_as_eager(*triple, what=f"{rows} x {size}, gradient {k}")


def test_nan_stays_in_its_row():
    x = torch.randn(4, 33)
    x[1, 7] = float("nan")
    x.requires_grad_()
    y = norm(x)
    (y * y).sum().backward()
    others = [0, 2, 3]
    for rows in (y, x.grad):
        assert rows[1].isnan().all() and not rows[others].isnan().any()


def test_frozen_parameters_cost_no_gradient():
    x, weight, bias = torch.randn(4, 33, requires_grad=True), torch.randn(33), torch.randn(33)
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if "layer_norm_backward" in str(func):
                seen.append([t.numel() for t in result])
            return result

    y = norm(x, weight, bias)
    with Watch():
        y.sum().backward()
    assert seen == [[4 * 33, 0, 0]]


def test_statistics_are_outputs_with_gradients_of_their_own():
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    for index, want in ((1, x.mean(-1)), (2, (x.var(-1, correction=0) + 1e-5).rsqrt())):

        def statistic(x, index=index):
            return torch.ops.fusewheel.layer_norm(x, None, None, 1e-5)[index]

        torch.testing.assert_close(statistic(x), want)
        assert torch.autograd.gradcheck(statistic, x)


def test_rows_without_elements_have_no_mean():
    for x in (torch.ones(3, 0), torch.ones(0)):
        y, mean, rstd = torch.ops.fusewheel.layer_norm(x, None, None, 1e-5)
        assert y.shape == x.shape
        assert mean.shape == rstd.shape == x.shape[:-1]
        assert mean.isnan().all() and rstd.isnan().all()


def test_parts_of_a_gradient_that_are_out_of_range_on_their_own():
    """Those of y and of rstd are larger than any float16, and of opposite signs."""
    signs = torch.tensor([1, 1, -1, -1], dtype=torch.float16)

    def parts(dtype: torch.dtype) -> list[torch.Tensor]:
        x = (signs * 1e-3).to(dtype).requires_grad_()
        y, _, rstd = torch.ops.fusewheel.layer_norm(x, None, None, 1e-6)
        seeds = 350 * signs.to(dtype), torch.ones_like(rstd)
        return [
            torch.autograd.grad(outputs, x, seed, retain_graph=True)[0]
            for outputs, seed in zip(((y, rstd), y, rstd), (seeds, *seeds), strict=True)
        ]

    got, of_y, of_rstd = parts(torch.float16)
    assert torch.equal(of_y, signs * torch.inf) and torch.equal(of_rstd, signs * -torch.inf)
    exact = parts(torch.float64)[0]
    assert_as_good_as_eager(got, exact.half(), exact)


def any_arguments(d: Draw):
    shape = any_rows(d)
    return d.tensor(*shape), d.optional(shape[-1]), d.optional(shape[-1]), epsilon(d)


def any_backward_arguments(d: Draw):
    x, weight, _, eps = any_arguments(d)
    _, mean, rstd = reference(x, None, None, eps)
    return d.tensor(*x.shape), x, weight, d.lay(mean, apart=True), d.lay(rstd, apart=True), d.flag()


FUZZ = {"layer_norm": any_arguments, "layer_norm_backward": any_backward_arguments}
