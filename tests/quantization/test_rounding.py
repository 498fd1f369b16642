import pytest
import torch
from fusewheel.quantization import (
    dequantize_int4,
    dequantize_int8,
    quantize_int4,
    quantize_int8,
    unpack_int4,
)
from fusewheel.quantization.rounding import _least_squares


def weight(*shape: int, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 0.05 + 0.01).to(dtype)


FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("group_size", [None, 32, 96])
def test_int8_codes_are_nearest_for_the_stored_scale(dtype, group_size):
    w = weight(37, 192, dtype=dtype)
    codes, scales = quantize_int8(w, group_size)
    assert (codes.dtype, scales.dtype) == (torch.int8, torch.float16)
    assert scales.shape == ((37,) if group_size is None else (37, 192 // group_size))
    step = scales.double().reshape(37, -1).repeat_interleave(group_size or 192, 1)
    inside = codes.abs() < 127
    error = (dequantize_int8(codes, scales).double() - w.double()).abs()
    assert (error <= step * 0.5001)[inside].all()
    # The ends of the range may be cut by what rounding took from the scale.
    assert (error <= step * 0.6)[~inside].all()
    assert codes.min() >= -127


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_int4_codes_are_nearest_for_the_stored_scale(dtype, group_size):
    w = weight(37, 256, dtype=dtype)
    quantized = quantize_int4(w, group_size)
    assert quantized.scales.dtype == quantized.zeros.dtype == torch.float16
    assert quantized.scales.shape == quantized.zeros.shape == (37, 256 // group_size)
    assert quantized.group_size == group_size
    step = quantized.scales.double().repeat_interleave(group_size, 1)
    error = (dequantize_int4(*quantized).double() - w.double()).abs()
    assert (error <= step * 0.53).all()
    codes = unpack_int4(quantized.qweight).view(37, -1, group_size)
    assert (codes.amin(-1) == 0).all() and (codes.amax(-1) == 15).all()


def loss(w, quantized, importance):
    return (importance.double() * (dequantize_int4(*quantized).double() - w.double()) ** 2).view(
        w.shape[0], -1, quantized.group_size
    )


@pytest.mark.parametrize("group_size", [32, 128])
def test_calibration_is_never_worse_in_its_own_measure(group_size):
    for seed in range(3):
        w = weight(65, 256, seed=seed)
        w[3, 5], w[4] = 2.0, 0.5
        w[5] *= 1e-6
        importance = weight(256, seed=10 + seed).abs() ** 2 * 1e3
        importance[::7] = 0.0
        plain = loss(w, quantize_int4(w, group_size), importance).sum(-1)
        fitted = loss(w, quantize_int4(w, group_size, importance), importance).sum(-1)
        assert (fitted <= plain).all()
        # That it is better by a good part is what it is for.
        assert fitted[:3].sum() < 0.85 * plain[:3].sum()


def test_the_fit_is_a_minimum():
    group, importance = weight(5, 2, 32, dtype=torch.float64), torch.rand(2, 32).double()
    codes = torch.randint(0, 16, group.shape).double()
    _, scale, zero = _least_squares(group, codes, importance, torch.float64)

    def error(scale, zero):
        return (importance * (codes * scale[..., None] + zero[..., None] - group) ** 2).sum(-1)

    for change in (-1e-4, 1e-4):
        assert (error(scale + change, zero) > error(scale, zero)).all()
        assert (error(scale, zero + change) > error(scale, zero)).all()


def test_calibration_serves_the_features_that_matter():
    w, importance = weight(32, 64), torch.ones(64)
    importance[::4] = 1e4
    plain, fitted = (
        loss(w, quantize_int4(w, 32, i), torch.ones(64)).view(32, 64)[:, ::4].sum()
        for i in (None, importance)
    )
    assert fitted < 0.7 * plain


def test_importance_of_nothing_changes_nothing():
    w = weight(8, 64)
    for a, b in zip(
        quantize_int4(w, 32, torch.zeros(64))[:3], quantize_int4(w, 32)[:3], strict=True
    ):
        assert torch.equal(a, b)


def test_groups_of_one_value():
    w = torch.tensor([0.0, 1.0, -3.5, 0.25]).repeat_interleave(32).view(2, 64)
    for importance in (None, torch.ones(64)):
        assert torch.equal(dequantize_int4(*quantize_int4(w, 32, importance)), w)
    zeros = torch.zeros(3, 64)
    assert torch.equal(dequantize_int8(*quantize_int8(zeros)), zeros)
    assert torch.equal(dequantize_int4(*quantize_int4(zeros)), zeros)


@pytest.mark.parametrize("size", [1e-30, 1e-7, 1e9, 1e30])
def test_scales_beyond_float16_are_float32_or_refused(size):
    w = weight(4, 64) * size
    for quantize, dequantize in (
        (quantize_int8, dequantize_int8),
        (quantize_int4, dequantize_int4),
    ):
        quantized = quantize(w)
        assert quantized.scales.dtype == torch.float32
        error = (dequantize(*quantized) - w).abs().max() / w.abs().max()
        assert error < 0.1
        with pytest.raises(ValueError, match=r"torch\.float16 cannot hold; use scale_dtype"):
            quantize(w, scale_dtype=torch.float16)


def test_the_dtype_of_scales_can_be_chosen():
    w = weight(4, 64)
    assert quantize_int8(w, scale_dtype=torch.bfloat16).scales.dtype == torch.bfloat16
    assert quantize_int4(w, scale_dtype=torch.float32).zeros.dtype == torch.float32


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_what_cannot_be_quantized_is_refused(quantize):
    for value in (float("nan"), float("inf"), -float("inf")):
        w = weight(5, 64)
        w[3, 40] = value
        with pytest.raises(ValueError, match=r"must be finite, got NaN or infinity in row 3"):
            quantize(w)
    for w in (torch.zeros(64), torch.zeros(2, 64, dtype=torch.int8), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match="must be a floating matrix"):
            quantize(w)
    with pytest.raises(ValueError, match="group_size"):
        quantize(weight(2, 64), 48)
    with pytest.raises(ValueError, match="64 in features"):
        quantize(weight(2, 64), 128)


def test_importance_that_makes_no_sense_is_refused():
    w = weight(2, 64)
    with pytest.raises(ValueError, match=r"must have shape \[64\], got \[32\]"):
        quantize_int4(w, 32, torch.ones(32))
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be finite and not negative"):
            quantize_int4(w, 32, torch.full((64,), value))


def test_many_rows_are_quantized_as_few():
    w, importance = weight(3000, 128), torch.rand(128)
    for i in (None, importance):
        whole, part = quantize_int4(w, 32, i), quantize_int4(w[2500:], 32, i)
        assert all(torch.equal(a[2500:], b) for a, b in zip(whole[:3], part[:3], strict=True))
    whole, part = quantize_int8(w), quantize_int8(w[2500:])
    assert all(torch.equal(a[2500:], b) for a, b in zip(whole, part, strict=True))
    assert quantize_int4(w[:0]).qweight.shape == (0, 64)


def test_the_weight_and_its_strides_do_not_matter():
    w = weight(64, 96)
    for quantize in (quantize_int8, quantize_int4):
        a, b = quantize(w.t().contiguous().t()), quantize(w.clone().requires_grad_())
        assert all(torch.equal(x, y) for x, y in zip(a[:2], b[:2], strict=True))
        assert not b.scales.requires_grad
