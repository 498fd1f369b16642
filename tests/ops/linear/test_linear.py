import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fuzz.draw import Draw
from neighbours import assert_call_as_good_as_eager, compute
from oracle import DTYPES, assert_as_good_as_eager, emulated

SIZES = [(1, 1), (7, 33), (255, 95), (512, 8), (1031, 70)]
# A float64 weight is for float64 activations.
DTYPE_PAIRS = [(a, b) for a in DTYPES for b in DTYPES if b != torch.float64 or a == torch.float64]
REFERENCE = {o.name: o for o in fusewheel.ops.operators()}["linear"].reference


# One row, few and many take other kernels; tiles end inside these sizes.
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 16, 17, 31, 40, 61, 65, 481])
@pytest.mark.parametrize(("features", "outputs"), SIZES)
def test_tiles_end_where_the_sizes_say(rows, features, outputs, dtype):
    arguments = tuple(
        Make(dtype, seed=i)(*shape)
        for i, shape in enumerate([(rows, features), (outputs, features), (outputs,)])
    )
    assert_call_as_good_as_eager(compute, fusewheel.linear, REFERENCE, arguments, "output")


@pytest.mark.parametrize("rows", [1, 4, 9, 40])
def test_activations_are_not_rounded(rows, dtype):
    x = Make(dtype, seed=5)(rows, 37)
    assert torch.equal(fusewheel.linear(x, torch.eye(37).to(dtype)), x)


@pytest.mark.parametrize("rows", [1, 4, 9, 40])
@pytest.mark.parametrize(("given", "stored"), DTYPE_PAIRS, ids=str)
def test_dtypes_mix(given, stored, rows):
    x, weight = Make(given, seed=1)(rows, 129), Make(stored, seed=2)(37, 129)
    for dtype in (None, *(b for a, b in DTYPE_PAIRS if a == given)):
        bias = None if dtype is None else Make(dtype, seed=3)(37)
        assert_call_as_good_as_eager(
            compute, fusewheel.linear, REFERENCE, (x, weight, bias), f"bias of {dtype}"
        )


@pytest.mark.parametrize("rows", [1, 4, 9, 40])
def test_views_are_read_where_they_are(rows, dtype):
    x, weight = (Make(dtype, seed=i)(n, 2 * 70) for i, n in ((3, rows), (4, 2 * 40)))
    got = fusewheel.linear(x[:, ::2], weight[::2, :70])
    x, weight = x[:, ::2].contiguous(), weight[::2, :70].contiguous()
    # For the emulator PyTorch multiplies, which may sum views in another order.
    if not emulated():
        assert torch.equal(got, fusewheel.linear(x, weight))
    assert_call_as_good_as_eager(compute, fusewheel.linear, REFERENCE, (x, weight, None), "output")


@pytest.mark.parametrize("rows", [0, 1, 5, 20])
def test_no_features_leave_the_bias(rows, dtype):
    bias = Make(dtype, seed=5)(6)
    y = fusewheel.linear(bias.new_empty(rows, 0), bias.new_empty(6, 0), bias)
    assert torch.equal(y, bias.expand(rows, 6))


@pytest.mark.parametrize("rows", [1, 4, 9, 40])
def test_nan_and_infinity_keep_to_their_row_and_column(rows):
    x, weight = Make(seed=6)(rows + 1, 65), Make(seed=7)(34, 65)
    x[0, 64], weight[33, 3] = float("nan"), float("inf")
    y = fusewheel.linear(x[: rows + 1], weight)
    assert y[0].isnan().all() and not y[1:].isnan().any()
    assert y[1:, 33].isinf().all() and y[1:, :33].isfinite().all()
    assert fusewheel.linear(x[:1], weight).isnan().all()


@pytest.mark.parametrize("stored", DTYPES)
def test_the_gradient_of_a_narrower_weight_is_rounded_once(stored):
    # What is left of each sum is beyond the digits that its terms have in float32.
    x = torch.tensor([2.0**24 + 1, -(2.0**24)], dtype=torch.float64)[:, None].expand(2, 5)
    weight = torch.zeros(4, 5, dtype=stored)
    got = torch.ops.fusewheel.linear_backward_weight(x.new_ones(2, 4), x, weight)
    assert torch.equal(got, torch.ones(4, 5, dtype=stored))


def test_the_gradient_of_a_wider_bias_is_not_rounded_on_its_way():
    x, weight = torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(1, 3, dtype=torch.bfloat16)
    bias = torch.zeros(1, requires_grad=True)
    grad = torch.tensor([[-0.29296875], [-2.171875]], dtype=torch.bfloat16)
    fusewheel.linear(x, weight, bias).backward(grad)
    assert bias.grad.item() == -2.46484375


def any_arguments(d: Draw):
    shape, columns = (*d.shape(0, 2, 64), d.size()), d.size(most=129)
    bias = d.optional(columns, dtype=d.stored())
    return d.tensor(*shape), d.tensor(columns, shape[-1], dtype=d.stored()), bias


def any_backward_arguments(d: Draw):
    x, weight, _ = any_arguments(d)
    return d.tensor(*x.shape[:-1], len(weight)), x, weight


FUZZ = {
    "linear": any_arguments,
    "linear_backward_x": lambda d: any_backward_arguments(d)[::2],
    "linear_backward_weight": any_backward_arguments,
}


# Neighbours in bfloat16 are read as pairs, if rows begin with a pair.
@pytest.mark.parametrize("apart", [608, 609, 610])
@pytest.mark.parametrize("rows", [6, 20, 40])
def test_rows_that_lie_apart(rows, apart, dtype):
    wide = torch.randn(rows, apart + 1, dtype=dtype), torch.randn(70, apart, dtype=dtype)
    x, weight = (t[:, :608] for t in wide)
    for t in wide:
        t[:, 608:] = float("nan")
    exact = x.double() @ weight.double().mT
    assert_as_good_as_eager(fusewheel.linear(x, weight), x @ weight.mT, exact)


@pytest.mark.parametrize("rows", [9, 24, 64])
def test_long_rows(rows, dtype):
    """What is packed of them at a time is not all."""
    x, weight = torch.randn(rows, 20010, dtype=dtype), torch.randn(140, 20010, dtype=dtype)
    exact = x.double() @ weight.double().mT
    assert_as_good_as_eager(fusewheel.linear(x, weight), x @ weight.mT, exact)


@pytest.mark.skipif(emulated(), reason="it is about the threads of the CPU kernels")
@pytest.mark.parametrize("rows", [1, 2, 4, 9, 20, 40])
@pytest.mark.parametrize("outputs", [129, 300, 1027])
@pytest.mark.parametrize("features", [607, 608])  # pairs of bfloat16, too
def test_few_rows_have_the_same_bits_for_any_number_of_threads(outputs, features, rows, dtype):
    x, weight = (
        torch.randn(rows, features, dtype=dtype),
        torch.randn(outputs, features, dtype=dtype),
    )
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            found.append(fusewheel.linear(x, weight))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])
