import math

import fusewheel
import pytest
import torch
from contracts import linear_int4, rounded_blocks
from fusewheel.dispatch.operator import Make
from fusewheel.ops.linear._quantized import rounded, unpack
from fusewheel.quantization import pack_int4
from fuzz.draw import Draw
from neighbours import assert_call_as_good_as_eager, compute
from oracle import DTYPES, Errors, assert_allowed, assert_as_good_as_eager, emulated

REFERENCE = {o.name: o for o in fusewheel.ops.operators()}["linear_int4"].reference
# float64 scales are for float64 activations.
DTYPE_PAIRS = [(a, b) for a in DTYPES for b in DTYPES if b != torch.float64 or a == torch.float64]


def weight(rows: int, columns: int, group_size: int, dtype=torch.float16):
    generator = torch.Generator().manual_seed(3)
    groups = columns // group_size
    codes = torch.randint(0, 256, (rows, columns // 2), generator=generator).to(torch.uint8)
    scales = torch.rand(rows, groups, generator=generator) * 0.05 + 0.01
    zeros = torch.randn(rows, groups, generator=generator) * 0.1 - 8 * scales
    return codes, scales.to(dtype), zeros.to(dtype)


def test_codes_lie_as_in_ggufs_blocks():
    packed = torch.arange(32, dtype=torch.uint8) * 5
    want = [0] * 64
    for block in range(2):
        for j in range(16):
            byte = int(packed[16 * block + j])
            want[32 * block + j], want[32 * block + 16 + j] = byte & 15, byte >> 4
    assert unpack(packed[None])[0].tolist() == want


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_it_is_a_linear_layer_with_the_decoded_weight(group_size):
    x, bias = Make(seed=1)(7, 256), Make(seed=2)(5)
    codes, scales, zeros = weight(5, 256, group_size, dtype=torch.float32)
    wide = [t.repeat_interleave(group_size, 1) for t in (scales, zeros)]
    decoded = unpack(codes).float() * wide[0] + wide[1]
    torch.testing.assert_close(
        fusewheel.linear_int4(x, codes, scales, zeros, group_size, bias),
        torch.nn.functional.linear(x, decoded, bias),
    )


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_few_rows(rows, group_size, dtype):
    """Two to four are multiplied as one is, unless one of them has a block of tiny numbers."""
    x = Make(dtype, seed=4).strided(rows, 640)
    arguments = *weight(83, 640, group_size), group_size, None, False
    for last in (x[-1], x[-1] * 1e-37):
        x[-1] = last
        assert_call_as_good_as_eager(
            compute,
            torch.ops.fusewheel.linear_int4.default,
            REFERENCE,
            (x, *arguments),
            "output",
            contract=linear_int4,
        )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("given", "stored"), DTYPE_PAIRS, ids=str)
def test_dtypes_mix(given, stored, dynamic):
    operator = torch.ops.fusewheel.linear_int4.default
    for rows, columns, size in ((1, 256, 64), (33, 96, 32), (9, 128, 128)):
        x, bias = Make(given, seed=4)(rows, columns), Make(stored, seed=5)(123)
        codes, scales, zeros = weight(123, columns, size, dtype=stored)
        arguments = (x, codes, scales, zeros, size, bias, dynamic)
        assert_call_as_good_as_eager(
            compute, operator, REFERENCE, arguments, "output", contract=linear_int4
        )


# One row, very few, packed codes, whole tiles and parts of them; columns in pieces, rests of one
# vector of codes and of more; rows of the weight that are read in turn, and side by side.
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, 13, 16, 47])
@pytest.mark.parametrize(
    ("columns", "group_size"),
    [(32, 32), (416, 32), (544, 32), (576, 64), (768, 128), (1088, 64), (3296, 32)],
)
def test_integer_products_are_exact(rows, columns, group_size):
    """Activations that are whole steps, scales and zeros of few bits leave nothing to round."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randint(-127, 128, (rows, columns), generator=generator).float()
    x[:, ::32] = 127
    for outputs in (9, 77):
        codes, *_ = weight(outputs, columns, group_size)
        groups = (outputs, columns // group_size)
        scales = 2.0 ** -torch.randint(3, 6, groups, generator=generator)
        zeros = torch.randint(-32, 33, groups, generator=generator) * 2.0**-5
        y = fusewheel.linear_int4(x, codes, scales, zeros, group_size, None, True)
        scale, zero = (t.repeat_interleave(group_size, 1).double() for t in (scales, zeros))
        decoded = unpack(codes).double() * scale + zero
        assert torch.equal(y, (x.double() @ decoded.T).float())


# Blocks that fill vectors, and a rest of them; a quarter of a thread's rows, and a rest of these.
@pytest.mark.skipif(
    emulated(), reason="CUDA adds up even and odd rows of the weight in different orders"
)
@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
@pytest.mark.parametrize("columns", [96, 256, 576, 1088])
def test_a_row_of_the_weight_has_its_bits_whichever_come_with_it(columns, stored):
    x = Make(seed=11)(1, columns)
    given = weight(301, columns, 32, stored)
    y = fusewheel.linear_int4(x, *given, 32, None, True)
    pieces = [
        fusewheel.linear_int4(x, *(t[i : i + 7] for t in given), 32, None, True)
        for i in range(0, 301, 7)
    ]
    assert torch.equal(y, torch.cat(pieces, 1))


def test_dynamic_rounds_by_32_whatever_the_group():
    x = Make(seed=7)(4, 128) * torch.tensor([1.0, 100.0, 1e-3, 10.0]).repeat_interleave(32)
    codes, scales, zeros = weight(6, 128, 128)
    decoded = unpack(codes).double() * scales.double() + zeros.double()
    want = rounded(x, 32).double() @ decoded.T
    got = fusewheel.linear_int4(x, codes, scales, zeros, 128, None, True)
    assert_as_good_as_eager(got, rounded(x, 32) @ decoded.float().T, want)
    assert (rounded(x, 128).double() @ decoded.T - want).abs().max() > 1e-2


def test_rows_of_zeros_and_of_nan_keep_to_themselves():
    x = Make(seed=8)(4, 64)
    x[1], x[2, 40] = 0.0, float("nan")
    for size in (32, 64):
        for dynamic in (False, True):
            y = fusewheel.linear_int4(x, *weight(5, 64, size), size, torch.ones(5), dynamic)
            assert torch.equal(y[1], torch.ones(5))
            assert y[2].isnan().all() and not y[[0, 1, 3]].isnan().any()


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_with_a_frozen_weight(dtype, dynamic):
    """The case that has kernels; where scales are learned too the reference is differentiated."""
    operator = {o.name: o for o in fusewheel.ops.operators()}["linear_int4"]

    def gradients(function, dtype, stored):
        frozen = (*weight(5, 64, 32, dtype=stored), 32)
        x, bias = (Make(torch.float16, seed=i)(*s) for i, s in ((9, (3, 64)), (10, (5,))))
        x, bias = (t.to(dtype).requires_grad_() for t in (x, bias))
        y = function(x, *frozen, bias, dynamic)
        return torch.autograd.grad((y * torch.linspace(-1, 1, 15).view(3, 5)).sum(), (x, bias))

    got = gradients(operator.overload, dtype, torch.float16)
    base = gradients(operator.reference, dtype, torch.float16)
    exact = gradients(operator.reference, torch.float64, torch.float16)
    for triple in zip(got, base, exact, strict=True):
        assert_as_good_as_eager(*triple)


def test_second_derivatives_with_a_frozen_weight():
    frozen = (*weight(5, 64, 32, dtype=torch.float64), 32)
    x = Make(torch.float64, requires_grad=True, seed=9)(2, 64)
    grad = Make(torch.float64, requires_grad=True, seed=9)(2, 5)

    def forward(x):
        return torch.ops.fusewheel.linear_int4(x, *frozen, None, False)

    def backward(grad):
        return torch.ops.fusewheel.linear_int4_backward(grad, *frozen)

    for function, value in ((forward, x), (backward, grad)):
        assert torch.autograd.gradcheck(function, value)
        assert torch.autograd.gradgradcheck(function, value)


def test_torch_func_sees_through_the_rounding():
    frozen = (*weight(5, 64, 32, dtype=torch.float32), 32)
    x = Make(seed=11)(3, 64)

    def loss(x, dynamic):
        return fusewheel.linear_int4(x, *frozen, None, dynamic).sum()

    torch.testing.assert_close(torch.func.grad(loss)(x, True), torch.func.grad(loss)(x, False))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e-38, 3e38])
def test_numbers_at_the_ends_of_the_range(value, dynamic, rows):
    """Activations in integers need a step: such numbers have none, or a very small one."""
    reference = {o.name: o for o in fusewheel.ops.operators()}["linear_int4"].reference
    codes, scales, zeros = weight(9, 64, 32, dtype=torch.float32)
    x = torch.zeros(rows, 64)
    x[-1, 3], x[-1, 40] = value, value
    arguments = (codes, scales / 64, zeros / 64, 32, None, dynamic)
    wide = (rounded(x, 32) if dynamic else x).double()
    exact = reference(wide, codes, scales.double() / 64, zeros.double() / 64, *arguments[3:])
    got, base = fusewheel.linear_int4(x, *arguments), reference(x, *arguments)
    assert_as_good_as_eager(got, base, exact)


@pytest.mark.parametrize("rows", [1, 4, 9, 40])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_infinite_activation_keeps_its_row_infinite(dynamic, rows, dtype):
    """Codes of 0, which times infinity would be NaN, stand for weights that are not 0."""
    codes, scales, zeros = weight(43, 128, 64, dtype=dtype)
    codes[::2, 2] = 0
    x = Make(dtype, seed=3)(rows, 128)
    x[rows // 2, 5] = math.inf
    arguments = (x, codes, scales, zeros - scales / 2, 64, None, dynamic)
    got, want = fusewheel.linear_int4(*arguments), REFERENCE(*arguments)
    assert torch.equal(got.isfinite(), want.isfinite())
    torch.testing.assert_close(got[rows // 2], want[rows // 2], equal_nan=True)


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("group_size", [32, 128])
@pytest.mark.parametrize("rows", [1, 3, 9, 17, 65])
def test_sums_of_large_activations_may_overflow(rows, group_size, given):
    """The sums of a block, and products with codes alone, are beyond float32; the result is not."""
    x = (Make(seed=12)(rows, 512).abs() * 3e37).to(given)
    x[rows // 2] *= -1
    codes, scales, zeros = weight(43, 512, group_size, dtype=given)
    codes[:7] = 0
    codes[:7, 100] = 3  # nearly all weights are zero if code 0 is
    for dynamic in (False, True):
        for offsets in (zeros, torch.zeros_like(zeros), -8 * scales):
            arguments = (x, codes, scales / 512, offsets / 512, group_size, None, dynamic)
            assert REFERENCE(*arguments).isfinite().all()
            assert_call_as_good_as_eager(
                compute,
                torch.ops.fusewheel.linear_int4.default,
                REFERENCE,
                arguments,
                "output",
                contract=linear_int4,
            )


@pytest.mark.parametrize("rows", [1, 3, 9, 17])
def test_results_beyond_the_range_are_infinite(rows):
    """And they stay so, each with its sign, while a row of NaN stays NaN."""
    codes, scales, _ = weight(43, 512, 32, dtype=torch.float32)
    x = torch.full((rows, 512), 3e38)
    x[-1, 40] = math.nan if rows > 1 else 3e38
    for dynamic in (False, True):
        y = fusewheel.linear_int4(x, codes, scales, scales, 32, None, dynamic)
        assert (y[: max(rows - 1, 1)] == math.inf).all()
        assert rows == 1 or y[-1].isnan().all()
        y = fusewheel.linear_int4(-x, codes, scales, scales, 32, None, dynamic)
        assert (y[: max(rows - 1, 1)] == -math.inf).all()


def test_one_row_errs_by_what_its_blocks_are_rounded(dtype):
    """Many rows, so that the largest element of a block meets every rounding of its step."""
    reference = {o.name: o for o in fusewheel.ops.operators()}["linear_int4"].reference
    codes, scales, zeros = weight(8, 96, 32, dtype=torch.float32)
    if dtype == torch.float64:
        scales, zeros = scales.double(), zeros.double()
    x = torch.randn(500, 96).to(dtype)
    exact = reference(x.double(), codes, scales.double(), zeros.double(), 32, None, False)
    rest = codes, scales, zeros, 32, None, False
    got, base, beside = (
        torch.cat([f(row[None], *rest) for row in x])
        for f in (fusewheel.linear_int4, reference, linear_int4)
    )
    errors = Errors(dtype)
    errors.add((base.double() - exact).abs(), exact)
    assert_allowed(got, base, exact, errors, "output", beside=beside)


@pytest.mark.parametrize("outlier", [False, True])
def test_an_activation_errs_by_what_its_block_is_rounded(dtype, outlier):
    """A weight that is the identity shows each activation as the product sees it."""
    features = 96
    codes = torch.full((features, features), 8, dtype=torch.uint8).fill_diagonal_(9)
    scales = torch.ones(features, features // 32)
    identity = pack_int4(codes), scales, -8 * scales
    for _ in range(100):
        x = torch.randn(1, features).to(dtype)
        if outlier:
            x[0, 7] = 1000
        allowed = rounded_blocks(x) + torch.finfo(dtype).eps * x.double().abs()

        def right(dynamic, x=x, allowed=allowed):
            y = fusewheel.linear_int4(x, *identity, 32, None, dynamic)
            return bool(((y.double() - x.double()).abs() <= allowed).all())

        assert right(dynamic=False)
        assert right(dynamic=True) == (dtype == torch.float64)  # int8 is found


def test_one_large_activation_does_not_drown_the_others(dtype):
    """A channel that outweighs all others in activations tends to have weights of exactly zero."""
    codes = torch.full((8, 32), 0x88, dtype=torch.uint8)
    codes[:, 20:] = 0x3C
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    scales, zeros = torch.ones(8, 2, dtype=wide), torch.full((8, 2), -8.0, dtype=wide)
    x = torch.full((1, 64), 0.5, dtype=dtype)
    x[0, 5] = x[0, 35] = 60000
    codes[:, 19] = 0x38
    decoded = unpack(codes).double() - 8
    want = x.double() @ decoded.T
    assert want.abs().max() < 60
    y = fusewheel.linear_int4(x, codes, scales, zeros)
    eager, errors = x @ decoded.to(dtype).T, Errors(dtype)
    errors.add((eager.double() - want).abs(), want)
    # Beside one that large, the others are rounded to 24 bits of it.
    half_step = 0 if dtype == torch.float64 else 60000 / 2**24
    beside = half_step * decoded.abs().sum(1)
    assert beside.max() < want.abs().min() / 10
    assert_allowed(y, eager, want, errors, "output", beside=beside)


def any_weight(d: Draw, rows: int):
    size, groups = d.choice(32, 64, 128), d.size(1, 7)
    codes = d.integers(rows, groups * size // 2, least=0, most=255, dtype=torch.uint8)
    stored = d.stored()
    scales, zeros = (d.tensor(rows, groups, dtype=stored, scale=0.1) for _ in range(2))
    return codes, scales, zeros, size


def any_arguments(d: Draw):
    weight = any_weight(d, d.size(most=129))
    x = d.tensor(*d.shape(0, 2, 64), 2 * weight[0].shape[1])
    return x, *weight, d.optional(len(weight[0]), dtype=d.stored()), d.flag()


def any_backward_arguments(d: Draw):
    grad = d.tensor(*d.shape(0, 2, 64), d.size(most=129))
    return grad, *any_weight(d, grad.shape[-1])


FUZZ = {"linear_int4": any_arguments, "linear_int4_backward": any_backward_arguments}
