import fusewheel
import pytest
import torch
from contracts import grouped_linear_blocks
from fusewheel.dispatch.operator import Make
from fusewheel.ops.linear._blocks import FORMATS
from fusewheel.ops.linear.linear_blocks import random_blocks
from fuzz.draw import Draw
from neighbours import assert_call_as_good_as_eager, compute
from oracle import emulated

OPERATORS = {o.name: o for o in fusewheel.ops.operators()}


def ends_of(*sizes: int) -> torch.Tensor:
    return torch.tensor(sizes).cumsum(0).int()


def weight(name: str, groups: int, rows: int, columns: int) -> tuple[torch.Tensor, int]:
    format = FORMATS[name]
    blocks = random_blocks(Make(), name, groups * rows, columns // format.weights)
    return blocks.unflatten(0, (groups, rows)), format.number


# Groups of no row, one, few and many take other kernels; tiles end inside these sizes. Tensor cores
# take multiples of 8 in bfloat16 and float16.
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "MXFP4", "Q6_K"])
@pytest.mark.parametrize("outputs", [70, 136])
def test_groups_of_any_size(name, outputs, dtype):
    ends = ends_of(1, 0, 17, 4, 0, 70, 2)
    make = Make(dtype)
    x, bias = make(100, 256), make(7, outputs)
    blocks, kind = weight(name, 7, outputs, 256)
    own, arguments = OPERATORS["grouped_linear_blocks"], (x, blocks, kind, ends, bias)
    contract = grouped_linear_blocks
    assert_call_as_good_as_eager(
        compute, own.overload, own.reference, arguments, name, contract=contract
    )


@pytest.mark.parametrize("name", ["NF4", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("outputs", [70, 136])
def test_gradients_for_groups_of_any_size(name, outputs, dtype):
    ends = ends_of(1, 0, 17, 4, 0, 70, 2)
    blocks, kind = weight(name, 7, outputs, 256)
    own = OPERATORS["grouped_linear_blocks_backward"]
    arguments = Make(dtype)(100, outputs), blocks, kind, ends
    assert_call_as_good_as_eager(compute, own.overload, own.reference, arguments, name)


def test_infinite_weights(dtype):
    """Not NaN, though tensor cores take them in parts."""
    blocks, _ = weight("Q8_0", 2, 16, 64)
    blocks[1, 5, 0, :2] = torch.tensor([0, 0x7C], dtype=torch.uint8)  # an infinite scale
    blocks[1, 5, 0, 2:] = 1
    x = Make(dtype)(40, 64).abs()
    y = fusewheel.grouped_linear_blocks(x, blocks, "Q8_0", ends_of(20, 20))
    assert (y[20:, 5] == float("inf")).all() and y.isfinite().sum() == 40 * 16 - 20


@pytest.mark.parametrize("backward", [False, True])
def test_infinite_activations(dtype, backward):
    """Not NaN, though parts of these weights are 0."""
    blocks, kind = weight("Q8_0", 2, 32, 64)
    blocks[..., :2] = torch.tensor([0, 0x3C], dtype=torch.uint8)  # scales of 1
    blocks[..., 2:] = 1
    x, bias = Make(dtype)(40, 32 if backward else 64), Make(dtype, seed=1)(2, 32)
    x[13, 3] = float("inf")
    x[30, 5] = -float("inf")
    ends = ends_of(20, 20)
    if backward:
        y = torch.ops.fusewheel.grouped_linear_blocks_backward(x, blocks, kind, ends)
    else:
        y = fusewheel.grouped_linear_blocks(x, blocks, "Q8_0", ends, bias)
    assert (y[13] == float("inf")).all() and (y[30] == -float("inf")).all()
    assert y.isfinite().sum() == 38 * y.shape[1]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 20])
def test_a_group_has_the_bits_of_a_linear_layer(name, rows):
    if emulated():
        pytest.skip("the emulator multiplies single matrices by PyTorch")
    x = Make(seed=1)(2 * rows, 256)
    blocks, kind = weight(name, 2, 70, 256)
    grad = Make(seed=2)(2 * rows, 70)
    ends = ends_of(rows, rows)
    got = fusewheel.grouped_linear_blocks(x, blocks, name, ends)
    backward = torch.ops.fusewheel.grouped_linear_blocks_backward(grad, blocks, kind, ends)
    for e in range(2):
        part = slice(e * rows, (e + 1) * rows)
        assert torch.equal(got[part], fusewheel.linear_blocks(x[part], blocks[e], name))
        own = torch.ops.fusewheel.linear_blocks_backward(grad[part], blocks[e], kind)
        assert torch.equal(backward[part], own)


def test_rows_of_no_group_are_zero_and_have_no_gradient():
    ends, (blocks, _) = ends_of(2, 1), weight("Q4_1", 2, 3, 32)
    x, bias = Make(requires_grad=True)(5, 32), Make(requires_grad=True, seed=2)(2, 3)
    with torch.no_grad():
        x[3:] = float("nan")
    y = fusewheel.grouped_linear_blocks(x, blocks, "Q4_1", ends, bias)
    assert torch.equal(y[3:], torch.zeros(2, 3)) and y.isfinite().all()
    y.sum().backward()
    assert torch.equal(x.grad[3:], torch.zeros(2, 32))
    assert torch.equal(bias.grad, torch.tensor([[2.0] * 3, [1.0] * 3]))


def test_the_weight_of_a_group_without_rows_is_not_read():
    x, ends = Make()(4, 32), ends_of(3, 0, 1)
    blocks, kind = weight("Q4_0", 3, 5, 32)
    blocks[1, ..., :2] = 255  # a scale that is NaN
    assert fusewheel.grouped_linear_blocks(x, blocks, "Q4_0", ends).isfinite().all()
    backward = torch.ops.fusewheel.grouped_linear_blocks_backward
    assert backward(x[:, :5], blocks, kind, ends).isfinite().all()


@pytest.mark.parametrize("ends", [[2, 1], [-1, 3], [0, 5], [2**31 + 1, 4]])
def test_ends_that_are_none(ends):
    x, (blocks, kind), ends = Make()(4, 32), weight("Q4_0", 2, 3, 32), torch.tensor(ends)
    operators = torch.ops.fusewheel
    for call in (
        lambda: operators.grouped_linear_blocks(x, blocks, kind, ends, None),
        lambda: operators.grouped_linear_blocks_backward(x[:, :3], blocks, kind, ends),
    ):
        if emulated():
            assert call().isfinite().all()  # nothing but the tensors was read
        else:
            with pytest.raises(RuntimeError, match="ends must not fall and be from 0 to 4, the"):
                call()


def test_second_derivatives():
    make = Make(torch.float64, requires_grad=True)
    x, bias, grad = make(5, 32), make(3, 2), make(5, 2)
    (blocks, kind), ends = weight("Q4_0", 3, 2, 32), ends_of(2, 0, 2)
    operators = torch.ops.fusewheel

    def forward(x, bias):
        return operators.grouped_linear_blocks(x, blocks, kind, ends, bias)

    def backward(grad):
        return operators.grouped_linear_blocks_backward(grad, blocks, kind, ends)

    for function, values in ((forward, (x, bias)), (backward, (grad,))):
        assert torch.autograd.gradcheck(function, values)
        assert torch.autograd.gradgradcheck(function, values)


def test_an_unknown_kind_is_refused():
    blocks, ends = torch.zeros(1, 1, 1, 18, dtype=torch.uint8), torch.tensor([1])
    with pytest.raises(ValueError, match=r"linear_blocks: kind must be one of 'Q4_0', .*Q9"):
        fusewheel.grouped_linear_blocks(torch.ones(1, 32), blocks, "Q9", ends)


def any_weight(d: Draw, rows: int):
    name, groups = d.choice(*FORMATS), d.integer(0, 5)
    count = d.integer(0, 512 // FORMATS[name].weights)
    blocks = random_blocks(Make(seed=d.integer(0, 99)), name, groups * rows, count)
    return d.lay(blocks.view(groups, rows, *blocks.shape[1:]), apart=True), FORMATS[name]


def any_ends(d: Draw, groups: int, rows: int):
    ends = d.integers(groups, least=0, most=rows, dtype=d.choice(torch.int32, torch.int64))
    return d.lay(ends.sort().values, apart=True)


def any_arguments(d: Draw):
    blocks, format = any_weight(d, d.size(most=65))
    x = d.tensor(d.size(most=65), blocks.shape[2] * format.weights)
    bias = d.optional(*blocks.shape[:2], dtype=d.stored())
    return x, blocks, format.number, any_ends(d, len(blocks), len(x)), bias


def any_backward_arguments(d: Draw):
    grad = d.tensor(d.size(most=65), d.size(most=65))
    blocks, format = any_weight(d, grad.shape[1])
    return grad, blocks, format.number, any_ends(d, len(blocks), len(grad))


FUZZ = {
    "grouped_linear_blocks": any_arguments,
    "grouped_linear_blocks_backward": any_backward_arguments,
}
