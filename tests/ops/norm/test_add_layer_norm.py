import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fusewheel.ops.norm.layer_norm import reference
from fuzz.draw import Draw
from fuzz.shapes import any_rows, epsilon
from oracle import assert_as_good_as_eager, assert_program_as_good_as_eager, to_dtype


def eager(x, residual, weight, bias):
    total = x + residual
    return torch.nn.functional.layer_norm(total, total.shape[-1:], weight, bias, 1e-5), total


def inputs(make, rows, size, parameters=True):
    weight, bias = (make(size), make(size)) if parameters else (None, None)
    return make(rows, size), make(rows, size), weight, bias


@pytest.mark.parametrize("parameters", [True, False])
@pytest.mark.parametrize("size", [1, 255, 507, 2**13 + 5])
def test_has_the_bits_of_an_addition_followed_by_the_norm(dtype, size, parameters):
    x, residual, weight, bias = inputs(Make(dtype), 3, size, parameters)
    y, total = fusewheel.add_layer_norm(x, residual, weight, bias)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, fusewheel.layer_norm(total, total.shape[-1], weight, bias))


def gradients(function, arguments, seeds):
    arguments = [t if t is None else t.detach().requires_grad_() for t in arguments]
    outputs = function(*arguments)
    used = [(o, s) for o, s in zip(outputs, seeds, strict=True) if s is not None]
    return torch.autograd.grad(
        [o for o, _ in used],
        [t for t in arguments if t is not None],
        [s for _, s in used],
        materialize_grads=True,
    )


@pytest.mark.parametrize("parameters", [True, False])
@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
def test_gradients_where_both_outputs_or_one_are_used(dtype, used, parameters):
    make = Make(dtype)
    arguments = inputs(make, 67, 255, parameters)
    seeds = tuple(make(67, 255) if use else None for use in used)
    got = gradients(fusewheel.add_layer_norm, arguments, seeds)
    base = gradients(eager, arguments, seeds)
    exact = gradients(eager, to_dtype(arguments, torch.float64), to_dtype(seeds, torch.float64))
    for k, triple in enumerate(zip(got, base, exact, strict=True)):
        assert_as_good_as_eager(*triple, what=f"gradient {k}")


def test_one_huge_row_many_tiny_ones_and_none():
    make = Make()
    for rows, size in ((1, 2**20), (2**16, 1), (0, 255)):
        # Of one sign, so that nothing cancels in the sums over rows.
        arguments = inputs(make, rows, size)
        seeds = make(rows, size).abs(), make(rows, size).abs()
        exact = to_dtype(arguments, torch.float64), to_dtype(seeds, torch.float64)
        own = fusewheel.add_layer_norm
        calls = (own, arguments, seeds), (eager, arguments, seeds), (eager, *exact)
        triples = zip(*((*f(*a), *gradients(f, a, s)) for f, a, s in calls), strict=True)
        for k, triple in enumerate(triples):
            assert_program_as_good_as_eager(*triple, what=f"{rows} x {size}, {k}")


def test_nan_stays_in_its_row():
    x, residual = (torch.randn(4, 33, requires_grad=True) for _ in range(2))
    with torch.no_grad():
        residual[1, 7] = float("nan")
    y, total = fusewheel.add_layer_norm(x, residual)
    assert y[1].isnan().all() and total.isnan().sum() == 1
    ((y * y).sum() + total.sum()).backward()
    others = [0, 2, 3]
    assert not y[others].isnan().any() and not residual.grad[others].isnan().any()
    assert residual.grad[1].isnan().all()


def test_an_addend_that_is_both():
    x = torch.randn(4, 33, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: fusewheel.add_layer_norm(x, x), x)


def any_arguments(d: Draw):
    shape = any_rows(d)
    norm = d.optional(shape[-1]), d.optional(shape[-1]), epsilon(d)
    return d.tensor(*shape), d.tensor(*shape), *norm


def any_backward_arguments(d: Draw):
    total, grad, weight, _, eps = any_arguments(d)
    _, mean, rstd = reference(total, None, None, eps)
    grads = grad, d.tensor(*total.shape)
    return *grads, total, weight, d.lay(mean, apart=True), d.lay(rstd, apart=True), d.flag()


FUZZ = {"add_layer_norm": any_arguments, "add_layer_norm_backward": any_backward_arguments}
