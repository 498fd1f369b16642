import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fuzz.draw import Draw
from oracle import DTYPES, assert_as_good_as_eager, emulated

OPERATORS = {o.name: o for o in fusewheel.ops.operators()}


def layers(x, weight, ends, bias=None):
    """A linear layer for each group, in PyTorch's operators."""
    return OPERATORS["grouped_linear"].reference(x, weight, ends, bias)


def ends_of(*sizes: int) -> torch.Tensor:
    return torch.tensor(sizes).cumsum(0).int()


# Groups of no row, one, few and many take other kernels; tiles end inside these sizes. Tensor cores
# take those that are multiples of 8.
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("features", "outputs"), [(7, 33), (130, 70), (512, 8), (136, 264), (8, 136)]
)
def test_groups_of_any_size(features, outputs, transposed, dtype):
    ends = ends_of(1, 0, 17, 4, 0, 70, 2)
    make = Make(dtype)
    x, bias = make(100, features), make(7, outputs)
    weight = (make.transposed if transposed else make)(7, outputs, features)
    exact = layers(x.double(), weight.double(), ends, bias.double())
    got = fusewheel.grouped_linear(x, weight, ends, bias)
    assert_as_good_as_eager(got, layers(x, weight, ends, bias), exact)


@pytest.mark.parametrize("stored", DTYPES, ids=str)
def test_dtypes_mix(stored):
    ends = ends_of(1, 20, 3)
    given = torch.float64 if stored == torch.float64 else torch.float32
    x, weight = Make(given, seed=1)(26, 129), Make(stored, seed=2)(3, 37, 129)
    for x_dtype in (given, torch.bfloat16) if given == torch.float32 else (given,):
        own = x.to(x_dtype)
        got = fusewheel.grouped_linear(own, weight, ends)
        exact = layers(own.double(), weight.double(), ends)
        assert_as_good_as_eager(got, layers(own, weight, ends), exact)


def test_rows_of_no_group_are_zero_and_have_no_gradient():
    ends = ends_of(2, 1)
    x, weight = Make(requires_grad=True)(5, 8), Make(requires_grad=True, seed=1)(2, 3, 8)
    bias = Make(requires_grad=True, seed=2)(2, 3)
    with torch.no_grad():
        x[3:] = float("nan")
    y = fusewheel.grouped_linear(x, weight, ends, bias)
    assert torch.equal(y[3:], torch.zeros(2, 3)) and y.isfinite().all()
    y.sum().backward()
    assert torch.equal(x.grad[3:], torch.zeros(2, 8))
    assert weight.grad.isfinite().all()
    assert torch.equal(bias.grad, torch.tensor([[2.0] * 3, [1.0] * 3]))


def test_the_weight_of_a_group_without_rows_is_not_read():
    x, weight = Make()(4, 8), Make(seed=1)(3, 5, 8)
    weight[1] = float("nan")
    ends = ends_of(3, 0, 1)
    assert fusewheel.grouped_linear(x, weight, ends).isfinite().all()
    gradient = torch.ops.fusewheel.grouped_linear_backward_weight(x[:, :5], x, weight, ends)
    assert torch.equal(gradient[1], torch.zeros(5, 8))


# In bfloat16 groups of many rows are multiplied by other instructions, in steps of 32 rows.
@pytest.mark.parametrize(
    ("features", "outputs"), [(7, 33), (130, 70), (512, 8), (136, 72), (264, 136)]
)
def test_gradient_of_the_weight_for_groups_of_any_size(features, outputs, dtype):
    sizes = (1, 0, 17, 4, 0, 64, 33, 2)
    make = Make(dtype)
    x, grad, weight = make(121, features), make(121, outputs), make(8, outputs, features)
    got = torch.ops.fusewheel.grouped_linear_backward_weight(grad, x, weight, ends_of(*sizes))
    groups = [(g.mT, own) for g, own in zip(grad.split(sizes), x.split(sizes), strict=True)]
    exact = torch.stack([g.double() @ own.double() for g, own in groups])
    assert_as_good_as_eager(got, torch.stack([g @ own for g, own in groups]), exact)


def test_nan_keeps_to_the_gradient_of_its_group(dtype):
    make = Make(dtype)
    x, grad, weight = make(100, 40), make(100, 24), make(3, 24, 40)
    for rows in (x, grad):
        rows[35] = float("nan")
    ends = ends_of(35, 20, 45)
    got = torch.ops.fusewheel.grouped_linear_backward_weight(grad, x, weight, ends).isnan()
    assert got[1].all() and not got[[0, 2]].any()


@pytest.mark.parametrize(("given", "outputs"), [(torch.float32, 2048), (torch.bfloat16, 4096)])
def test_a_gradient_larger_than_the_caches(given, outputs):
    """It is stored past them, which changes no bit."""
    make = Make(given)
    x, grad, weight = make(21, 4160), make(21, outputs), make(2, outputs, 4160)
    halves = [(x[:, :2080], weight[..., :2080]), (x[:, 2080:], weight[..., 2080:])]
    ends = ends_of(3, 18)
    gradient = torch.ops.fusewheel.grouped_linear_backward_weight
    whole = gradient(grad, x, weight, ends)
    assert torch.equal(whole, torch.cat([gradient(grad, *half, ends) for half in halves], -1))


def test_no_groups():
    x, weight, ends = Make()(4, 8), Make()(0, 3, 8), torch.zeros(0, dtype=torch.int32)
    assert torch.equal(fusewheel.grouped_linear(x, weight, ends), torch.zeros(4, 3))


@pytest.mark.parametrize("outputs", [9, 16])
def test_nan_keeps_to_its_row(outputs, dtype):
    x, weight = Make(dtype)(30, 40), Make(dtype, seed=1)(2, outputs, 40)
    x[4, 3] = float("nan")
    rows = fusewheel.grouped_linear(x, weight, ends_of(20, 10)).isnan()
    assert rows[4].all() and rows.sum() == outputs
    x[:, 3] = 0
    weight[1, 5, 3] = float("inf")  # times 0
    rows = fusewheel.grouped_linear(x, weight, ends_of(20, 10)).isnan()
    assert rows[20:, 5].all() and rows.sum() == 10


# Nothing is read behind a row of a view, nor of the rows behind a group's last.
def test_views_with_nan_in_their_gaps(dtype):
    wide, weight = Make(dtype)(90, 80), Make(dtype, seed=1)(2, 136, 144)
    wide[:, 72:] = float("nan")
    weight[..., 72:] = float("nan")
    x, own, ends = wide[:, :72], weight[..., :72], ends_of(67, 9)
    got = fusewheel.grouped_linear(x, own, ends)
    exact = layers(x.double(), own.double(), ends)
    assert_as_good_as_eager(got, layers(x, own, ends), exact)
    grad = Make(dtype, seed=2)(90, 136)
    grad[76:] = float("nan")  # in no group
    operators = torch.ops.fusewheel
    assert operators.grouped_linear_backward_x(grad, own, ends)[:76].isfinite().all()
    assert operators.grouped_linear_backward_weight(grad, x, own, ends).isfinite().all()


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_group_has_the_bits_of_a_linear_layer(rows, dtype):
    if emulated():
        pytest.skip("the emulator multiplies single matrices by PyTorch")
    x, weight = Make(dtype)(2 * rows, 96), Make(dtype, seed=1)(2, 70, 96)
    got = fusewheel.grouped_linear(x, weight, ends_of(rows, rows))
    for e in range(2):
        part = slice(e * rows, (e + 1) * rows)
        assert torch.equal(got[part], fusewheel.linear(x[part], weight[e]))


@pytest.mark.parametrize("ends", [[2, 1], [-1, 3], [0, 5], [2**31 + 1, 4], [-(2**40), 4]])
def test_ends_that_are_none(ends):
    x, weight, ends = Make()(4, 8), Make(seed=1)(2, 3, 8), torch.tensor(ends)
    operators = torch.ops.fusewheel
    calls = (
        lambda: fusewheel.grouped_linear(x, weight, ends),
        lambda: operators.grouped_linear_backward_x(x[:, :3], weight, ends),
        lambda: operators.grouped_linear_backward_weight(x[:, :3], x, weight, ends),
    )
    for call in calls:
        if emulated():
            assert call().isfinite().all()  # nothing but the tensors was read
        else:
            with pytest.raises(
                RuntimeError, match="ends must not fall and be from 0 to 4, the rows"
            ):
                call()


def test_second_derivatives():
    make = Make(torch.float64, requires_grad=True)
    x, weight, bias, grad = make(5, 4), make(3, 2, 4), make(3, 2), make(5, 2)
    ends = ends_of(2, 0, 2)
    operators = torch.ops.fusewheel

    def backward_weight(grad, x):
        return operators.grouped_linear_backward_weight(grad, x, weight.detach(), ends)

    for function, values in (
        (lambda *given: fusewheel.grouped_linear(given[0], given[1], ends, given[2]),
         (x, weight, bias)),
        (lambda *given: operators.grouped_linear_backward_x(*given, ends), (grad, weight)),
        (backward_weight, (grad, x)),
    ):  # fmt: skip
        assert torch.autograd.gradcheck(function, values)
        assert torch.autograd.gradgradcheck(function, values)


def test_like_grouped_mm_of_torch():
    if not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("this torch has no grouped_mm")
    x, weight, ends = Make()(12, 16), Make(seed=1)(3, 8, 16), ends_of(4, 0, 8)
    want = torch.nn.functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    torch.testing.assert_close(fusewheel.grouped_linear(x, weight, ends), want)


def any_groups(d: Draw):
    x = d.tensor(d.size(most=65), d.size(most=129))
    groups = d.integer(0, 5)
    ends = d.integers(groups, least=0, most=len(x), dtype=d.choice(torch.int32, torch.int64))
    return x, groups, d.lay(ends.sort().values, apart=True)


def any_arguments(d: Draw):
    x, groups, ends = any_groups(d)
    outputs = d.size(most=65)
    weight = d.tensor(groups, outputs, x.shape[1], dtype=d.stored())
    return x, weight, ends, d.optional(groups, outputs, dtype=d.stored())


def any_backward_x_arguments(d: Draw):
    grad, groups, ends = any_groups(d)
    return grad, d.tensor(groups, grad.shape[1], d.size(most=65), dtype=d.stored()), ends


def any_backward_weight_arguments(d: Draw):
    x, groups, ends = any_groups(d)
    outputs = d.size(most=65)
    weight = d.tensor(groups, outputs, x.shape[1], dtype=d.stored())
    return d.tensor(len(x), outputs), x, weight, ends


FUZZ = {
    "grouped_linear": any_arguments,
    "grouped_linear_backward_x": any_backward_x_arguments,
    "grouped_linear_backward_weight": any_backward_weight_arguments,
}
