import fusewheel
import pytest
import torch
from contracts import linear_int8
from fusewheel.dispatch.operator import Make
from fusewheel.ops.linear._quantized import rounded
from fuzz.draw import Draw
from neighbours import assert_call_as_good_as_eager, compute
from oracle import DTYPES, assert_as_good_as_eager

OPERATOR = {o.name: o for o in fusewheel.ops.operators()}["linear_int8"]
# float64 scales are for float64 activations.
DTYPE_PAIRS = [(a, b) for a in DTYPES for b in DTYPES if b != torch.float64 or a == torch.float64]


def weight(rows: int, columns: int, *groups: int, dtype=torch.float16):
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(-128, 128, (rows, columns), generator=generator).to(torch.int8)
    return codes, (torch.rand(rows, *groups, generator=generator) * 0.05 + 0.01).to(dtype)


def test_it_is_a_linear_layer_with_the_decoded_weight():
    x, bias = Make(seed=1)(7, 64), Make(seed=2)(5)
    codes, scales = weight(5, 64, 2, dtype=torch.float32)
    decoded = codes.float() * scales.repeat_interleave(32, 1)
    torch.testing.assert_close(
        fusewheel.linear_int8(x, codes, scales, bias), torch.nn.functional.linear(x, decoded, bias)
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("given", "stored"), DTYPE_PAIRS, ids=str)
def test_dtypes_mix(given, stored, dynamic):
    operator = torch.ops.fusewheel.linear_int8.default
    for rows, columns, groups in ((1, 256, (2,)), (33, 96, ()), (9, 128, (4,))):
        x, bias = Make(given, seed=4)(rows, columns), Make(stored, seed=5)(123)
        codes, scales = weight(123, columns, *groups, dtype=stored)
        arguments = (x, codes, scales, bias, dynamic)
        assert_call_as_good_as_eager(
            compute, operator, OPERATOR.reference, arguments, "output", contract=linear_int8
        )


# Rows that are not packed, codes that they read in pieces; whole tiles and parts of them; groups in
# pieces; parts of vectors.
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, 13, 47, 100])
@pytest.mark.parametrize(
    ("columns", "groups"),
    [
        (512, ()),
        (512, (4,)),
        (512, (16,)),
        (2600, ()),
        (5000, ()),
        (37, ()),
        (768, (8,)),
        (1152, (4,)),
    ],
)
def test_integer_products_are_exact(rows: int, columns: int, groups: tuple[int, ...]):
    """Activations that are whole steps and scales that are powers of two leave nothing to round."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randint(-127, 128, (rows, columns), generator=generator).float()
    x[:, :: columns // (groups[0] if groups else 1)] = 127
    for outputs in (9, 77):
        codes, _ = weight(outputs, columns)
        scales = torch.full((outputs, *groups), 2.0**-6)
        y = fusewheel.linear_int8(x, codes, scales, None, True)
        assert torch.equal(y, (x.double() @ codes.double().T * 2.0**-6).float())


def test_dynamic_rounds_by_the_weights_groups():
    x = Make(seed=7)(4, 128) * torch.tensor([1.0, 100.0]).repeat_interleave(64)
    codes, scales = weight(6, 128, 2)
    decoded = codes.double() * scales.double().repeat_interleave(64, 1)
    want = rounded(x, 64).double() @ decoded.T
    got = fusewheel.linear_int8(x, codes, scales, None, True)
    assert_as_good_as_eager(got, rounded(x, 64) @ decoded.float().T, want)
    per_row = rounded(x, 128).double() @ decoded.T
    assert (per_row - want).abs().max() > 1e-2


def test_rounding_of_activations():
    x = torch.tensor([[127.0, 0.5, 1.5, -2.5, -127.0, 126.5]])
    assert rounded(x, 6).tolist() == [[127.0, 0.0, 2.0, -2.0, -127.0, 126.0]]
    assert rounded(torch.zeros(2, 4), 4).tolist() == [[0.0] * 4] * 2
    # So small that 127 / max |x| is infinite.
    assert rounded(torch.full((1, 4), 1e-40), 4).abs().max() <= 1e-40
    assert torch.equal(rounded(x.double() / 3, 6), x.double() / 3)


def test_rows_of_zeros_and_of_nan_keep_to_themselves():
    x = Make(seed=8)(4, 512)
    x[1], x[2, 40] = 0.0, float("nan")
    for groups in ((), (2,), (16,)):
        codes, scales = weight(5, 512, *groups)
        for dynamic in (False, True):
            y = fusewheel.linear_int8(x, codes, scales, torch.ones(5), dynamic)
            assert torch.equal(y[1], torch.ones(5))
            assert y[2].isnan().all() and not y[[0, 1, 3]].isnan().any()


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("groups", [(), (4,), (16,)], ids=str)
@pytest.mark.parametrize("rows", [1, 4, 16, 17])
def test_codes_times_large_activations_may_overflow(rows, groups, given):
    """The products with codes alone are beyond float32, those with scaled codes are not."""
    codes, scales = weight(43, 512, *groups, dtype=given)
    x = (Make(seed=11)(rows, 512) * 1e37).to(given)
    x[rows // 2] = Make(seed=13)(512).to(given) * 1e-37  # beside them, one whose digits must stay
    for dynamic in (False, True):
        arguments = (x, codes, scales / 32, None, dynamic)
        assert OPERATOR.reference(*arguments).isfinite().all()
        assert_call_as_good_as_eager(
            compute,
            torch.ops.fusewheel.linear_int8.default,
            OPERATOR.reference,
            arguments,
            "output",
            contract=linear_int8,
        )


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_with_a_frozen_weight(dtype, dynamic):
    """The case that has kernels; where scales are learned too the reference is differentiated."""

    def gradients(function, dtype, stored):
        codes, scales = weight(5, 64, 2, dtype=stored)
        x, bias = (Make(torch.float16, seed=i)(*s) for i, s in ((9, (3, 64)), (10, (5,))))
        x, bias = (t.to(dtype).requires_grad_() for t in (x, bias))
        y = function(x, codes, scales, bias, dynamic)
        return torch.autograd.grad((y * torch.linspace(-1, 1, 15).view(3, 5)).sum(), (x, bias))

    got = gradients(OPERATOR.overload, dtype, torch.float16)
    base = gradients(OPERATOR.reference, dtype, torch.float16)
    exact = gradients(OPERATOR.reference, torch.float64, torch.float16)
    for triple in zip(got, base, exact, strict=True):
        assert_as_good_as_eager(*triple)


def test_second_derivatives_with_a_frozen_weight():
    codes, scales = weight(5, 64, 2, dtype=torch.float64)
    x = Make(torch.float64, requires_grad=True, seed=9)(2, 64)
    grad = Make(torch.float64, requires_grad=True, seed=9)(2, 5)

    def forward(x):
        return torch.ops.fusewheel.linear_int8(x, codes, scales, None, False)

    def backward(grad):
        return torch.ops.fusewheel.linear_int8_backward(grad, codes, scales)

    for function, value in ((forward, x), (backward, grad)):
        assert torch.autograd.gradcheck(function, value)
        assert torch.autograd.gradgradcheck(function, value)


def test_torch_func_sees_through_the_rounding():
    codes, scales = weight(5, 64, 2, dtype=torch.float32)
    x = Make(seed=11)(3, 64)

    def loss(x, dynamic):
        return fusewheel.linear_int8(x, codes, scales, None, dynamic).sum()

    torch.testing.assert_close(torch.func.grad(loss)(x, True), torch.func.grad(loss)(x, False))


def any_weight(d: Draw, rows: int):
    groups = d.choice(None, 1, 2, 3, 5)
    columns = d.size() if groups in (None, 1) else groups * 32 * d.integer(1, 3)
    codes = d.integers(rows, columns, least=-128, most=127, dtype=torch.int8)
    shape = (rows,) if groups is None else (rows, groups)
    return codes, d.tensor(*shape, dtype=d.stored(), scale=0.05)


def any_arguments(d: Draw):
    codes, scales = any_weight(d, d.size(most=129))
    x = d.tensor(*d.shape(0, 2, 64), codes.shape[1])
    return x, codes, scales, d.optional(len(codes), dtype=d.stored()), d.flag()


def any_backward_arguments(d: Draw):
    grad = d.tensor(*d.shape(0, 2, 64), d.size(most=129))
    return grad, *any_weight(d, grad.shape[-1])


FUZZ = {"linear_int8": any_arguments, "linear_int8_backward": any_backward_arguments}
