import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fusewheel.ops.norm.rms_norm import GEMMA, LLAMA, TORCH, reference
from fuzz.draw import Draw
from fuzz.shapes import any_rows, epsilon
from oracle import assert_as_good_as_eager, assert_program_as_good_as_eager, to_dtype

CASTS = ("llama", "gemma", "torch")


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("size", [1, 255, 507, 2**12 + 3])
def test_has_the_bits_of_an_addition_followed_by_the_norm(dtype, cast, size):
    make = Make(dtype)
    x, residual, weight = make(3, size), make(3, size), make(size)
    y, total = fusewheel.add_rms_norm(x, residual, weight, 1e-5, cast)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, fusewheel.rms_norm(total, weight.shape, weight, 1e-5, cast=cast))


def gradients(function, inputs, seeds):
    inputs = [t.detach().requires_grad_() for t in inputs]
    outputs = function(*inputs)
    used = [(o, s) for o, s in zip(outputs, seeds, strict=True) if s is not None]
    return torch.autograd.grad(
        [o for o, _ in used], inputs, [s for _, s in used], materialize_grads=True
    )


def eager(x, residual, weight):
    total = x + residual
    return torch.nn.functional.rms_norm(total, weight.shape, weight, 1e-6), total


@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
def test_gradients_where_both_outputs_or_one_are_used(dtype, used):
    make = Make(dtype)
    inputs = make(67, 255), make(67, 255), make(255)
    seeds = [make(67, 255) if use else None for use in used]
    got = gradients(lambda *a: fusewheel.add_rms_norm(*a, 1e-6, "torch"), inputs, seeds)
    base = gradients(eager, inputs, seeds)
    exact = gradients(
        eager, [t.double() for t in inputs], [s if s is None else s.double() for s in seeds]
    )
    for k, triple in enumerate(zip(got, base, exact, strict=True)):
        assert_as_good_as_eager(*triple, what=f"gradient {k}")


def test_gradients_of_both_addends_accumulate_on_their_own():
    x, residual = (torch.randn(4, 33, requires_grad=True) for _ in range(2))
    weight = torch.ones(33)
    for _ in range(2):
        sum(o.sum() for o in fusewheel.add_rms_norm(x, residual, weight)).backward()
    torch.testing.assert_close(x.grad, residual.grad)
    x.grad.zero_()
    assert residual.grad.any()


def test_an_addend_that_is_both():
    x = torch.randn(4, 33, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(33, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: fusewheel.add_rms_norm(x, x, weight), x)


def test_one_huge_row_many_tiny_ones_and_none():
    make = Make()
    for rows, size in ((1, 2**20), (2**16, 1), (0, 255)):
        # Of one sign, so that nothing cancels in the sums over rows.
        x, residual, *seeds = (make(rows, size).abs() for _ in range(4))
        arguments = x, residual, make(size)
        exact = to_dtype(arguments, torch.float64), to_dtype(seeds, torch.float64)
        calls = (
            (fusewheel.add_rms_norm, arguments, seeds),
            (eager, arguments, seeds),
            (eager, *exact),
        )
        triples = zip(*((*f(*a), *gradients(f, a, s)) for f, a, s in calls), strict=True)
        for k, triple in enumerate(triples):
            assert_program_as_good_as_eager(*triple, what=f"{rows} x {size}, {k}")


def test_nan_stays_in_its_row():
    x, residual = (torch.randn(4, 33, requires_grad=True) for _ in range(2))
    with torch.no_grad():
        residual[1, 7] = float("nan")
    y, total = fusewheel.add_rms_norm(x, residual, torch.ones(33))
    assert y[1].isnan().all() and total.isnan().sum() == 1
    (y.sum() + total.sum()).backward()
    others = [0, 2, 3]
    assert not y[others].isnan().any() and not x.grad[others].isnan().any()
    assert x.grad[1].isnan().all()


def test_unknown_cast_is_refused():
    x = torch.ones(4)
    with pytest.raises(ValueError, match="cast must be"):
        fusewheel.add_rms_norm(x, x, x, cast="bert")


def any_arguments(d: Draw):
    shape = any_rows(d)
    norm = d.tensor(shape[-1]), epsilon(d), d.choice(LLAMA, GEMMA, TORCH)
    return d.tensor(*shape), d.tensor(*shape), *norm


def any_backward_arguments(d: Draw):
    total, grad, weight, eps, cast = any_arguments(d)
    rstd = d.lay(reference(total, weight, eps, cast)[1], apart=True)
    return grad, d.tensor(*total.shape), total, weight, rstd, cast


FUZZ = {"add_rms_norm": any_arguments, "add_rms_norm_backward": any_backward_arguments}
