"""Layers of quantised checkpoints: weights bit for bit, products, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import stored_layers
import torch
from fusewheel.quantization import LinearBlocks, LinearInt4, dequantize_blocks, dequantize_int4
from fusewheel.quantization.checkpoints import Awq, BitsAndBytes4, Fp8, Gptq, Reordered
from fusewheel.quantization.checkpoints.layers import LinearInt8Zeros
from fusewheel.quantization.formats import dequantize_int8
from neighbours import assert_call_as_good_as_eager, compute

Linear = Callable[[torch.Tensor], torch.Tensor]

ROWS, COLUMNS = 40, 256
GPTQ = {
    "groups of 32": {"group": 32},
    "groups of 64": {"group": 64},
    "groups of 128": {"group": 128},
    "one group": {"group": -1},
    "act order": {"act_order": True, "group": 64},
    "version 2": {"less": 0},
    "symmetric": {"sym": True},
    "bfloat16 scales": {"dtype": torch.bfloat16},
    "8 bits": {"bits": 8},
    "8 bits, symmetric": {"bits": 8, "sym": True, "group": 128},
    "8 bits, act order": {"bits": 8, "act_order": True, "group": 64},
    "8 bits, one group": {"bits": 8, "sym": True, "group": -1},
}
CASES: dict[str, tuple[Any, Any]] = {
    **{
        f"gptq, {name}": (
            Gptq(case.get("group", 32), case.get("sym", False), case.get("less", 1)),
            lambda case=case: stored_layers.gptq(ROWS, COLUMNS, **case),
        )
        for name, case in GPTQ.items()
    },
    "gptq, short last group": (Gptq(128, False), lambda: stored_layers.gptq(8, 192, group=128)),
    "awq": (Awq(32), lambda: stored_layers.awq(ROWS, COLUMNS)),
    "awq, one group": (Awq(-1), lambda: stored_layers.awq(ROWS, COLUMNS, -1)),
    "nf4": (BitsAndBytes4("nf4"), lambda: stored_layers.bitsandbytes(ROWS, COLUMNS)),
    "nf4, not nested": (
        BitsAndBytes4("nf4"),
        lambda: stored_layers.bitsandbytes(ROWS, COLUMNS, nested=False),
    ),
    "fp4, blocks of 128": (
        BitsAndBytes4("fp4"),
        lambda: stored_layers.bitsandbytes(ROWS, COLUMNS, "fp4", size=128),
    ),
    "fp8": (Fp8((128, 128)), lambda: stored_layers.fp8(200, 192)),
    "fp8, one scale": (Fp8(None), lambda: stored_layers.fp8(ROWS, 128, None)),
    "fp8, powers of two": (
        Fp8((128, 128)),
        lambda: stored_layers.fp8(200, 192, dtype=torch.float8_e8m0fnu),
    ),
}


def decoded(layer: Any) -> torch.Tensor:
    """The weight of a layer, in float32."""
    if isinstance(layer, Reordered):
        inner = decoded(layer.layer)
        weight = torch.empty_like(inner)
        weight[:, layer.order] = inner
        return weight
    if isinstance(layer, LinearBlocks):
        return dequantize_blocks(layer.blocks, layer.kind)
    if isinstance(layer, LinearInt4):
        return dequantize_int4(layer.qweight, layer.scales, layer.zeros, layer.group_size)
    weight = dequantize_int8(layer.qweight, layer.scales.float())
    if isinstance(layer, LinearInt8Zeros):
        weight += layer.offsets.repeat_interleave(weight.shape[1] // layer.offsets.shape[1], 1)
    return weight


def made(name: str) -> tuple[Any, Any, torch.Tensor, dict[str, torch.Tensor]]:
    """The format, the layer, its weight by the formula, and the stored tensors."""
    format, build = CASES[name]
    tensors, weight = build()
    format.check({k: t.to("meta") for k, t in tensors.items()}, *weight.shape)
    bias = torch.randn(weight.shape[0])
    return format, format.layer(tensors, *weight.shape, bias), weight, tensors


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_formula_bit_for_bit(name):
    _, layer, weight, _ = made(name)
    assert torch.equal(decoded(layer), weight)


@pytest.mark.parametrize("name", CASES)
def test_products_and_gradients(name):
    _, layer, weight, _ = made(name)

    def results(linear: Linear, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.clone().requires_grad_()
        y = linear(x)
        assert y.dtype == x.dtype
        return y.detach(), *torch.autograd.grad(y, x, grad)

    def by_the_weight(x: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = layer.bias.to(wide)
        return torch.nn.functional.linear(x.to(wide), weight.to(wide), bias).to(x.dtype)

    def of_two_sums(x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where codes and offsets are added up apart: a last place of each sum."""
        eps = torch.finfo(torch.float32).eps
        x, grad, offsets = x.double(), grad.double(), inner.offsets.double()
        offsets = offsets.repeat_interleave(weight.shape[1] // offsets.shape[1], 1)[:, place]
        parts = (weight.double() - offsets, offsets)
        return (
            eps * sum((x @ part.T).abs() for part in parts),
            eps * sum((grad @ part).abs() for part in parts),
        )

    inner, place = layer, torch.arange(weight.shape[1])
    if isinstance(layer, Reordered):
        inner, place = layer.layer, layer.order.argsort()
    contract = of_two_sums if isinstance(inner, LinearInt8Zeros) else None
    for rows in (1, 5):
        for dtype in (torch.float32, torch.bfloat16):
            x, grad = (torch.randn(rows, size).to(dtype) for size in reversed(weight.shape))
            own, reference = partial(results, layer), partial(results, by_the_weight)
            what = f"{rows} rows, {dtype}: result"
            assert_call_as_good_as_eager(
                compute, own, reference, (x, grad), what, contract=contract
            )


@pytest.mark.parametrize("name", CASES)
def test_the_way_back_gives_the_same_bits(name):
    format, layer, weight, tensors = made(name)
    back = format.tensors(layer)
    assert torch.equal(decoded(format.layer(back, *weight.shape, None)), weight)
    if isinstance(format, (Gptq, Awq)):
        assert set(back) == set(tensors)
        for key, tensor in tensors.items():
            if key != "g_idx" or "act" not in name:
                assert torch.equal(back[key], tensor), key


def test_zeros_of_the_second_version_under_the_name_of_the_first():
    """Some programs do so; all zeros are half of the range then."""
    tensors, weight = stored_layers.gptq(16, 64, sym=True, less=0)
    layer = Gptq(32, symmetric=True, less=1).layer(tensors, 16, 64, None)
    assert torch.equal(decoded(layer), weight)


def test_bitsandbytes_may_keep_its_bytes_in_any_dtype():
    tensors, weight = stored_layers.bitsandbytes(8, 128)
    tensors["weight"] = tensors["weight"].view(-1).view(torch.bfloat16)[:, None]
    format = BitsAndBytes4("nf4")
    format.check(tensors, 8, 128)
    assert torch.equal(decoded(format.layer(tensors, 8, 128, None)), weight)


def test_bad_tensors_are_refused():
    gptq, _ = stored_layers.gptq(16, 64)
    awq, _ = stored_layers.awq(16, 64)
    nf4, _ = stored_layers.bitsandbytes(16, 64)
    fp8, _ = stored_layers.fp8(16, 64)
    nan = torch.full_like(gptq["scales"], float("nan"))
    state = "weight.quant_state.bitsandbytes__nf4"
    cases = [
        (Gptq(32), gptq, "qweight", gptq["qweight"][:3], "qweight has 3 words for 64"),
        (Gptq(32), gptq, "qzeros", gptq["qzeros"][:1], "qzeros must be int32 of shape"),
        (Gptq(32), gptq, "scales", gptq["scales"].double(), "scales must be float16 or bfloat16"),
        (Gptq(32), gptq, "scales", nan, "scales must be finite"),
        (Gptq(32), gptq, "g_idx", gptq["g_idx"] + 1, "g_idx must name every group 32 times"),
        (Gptq(32), gptq, "g_idx", gptq["g_idx"][1:], "g_idx must be int32 of shape"),
        (Awq(32), awq, "qweight", awq["qweight"].T, "qweight must be int32 of shape"),
        (Awq(24), awq, "scales", awq["scales"], "group_size must be a multiple of 32"),
        (BitsAndBytes4(), nf4, "weight", nf4["weight"][1:], "weight must have 512 bytes"),
        (BitsAndBytes4(), nf4, "weight.quant_map", torch.zeros(16), "is not the table of nf4"),
        (BitsAndBytes4(), nf4, state, torch.tensor([123, 125]).byte(), "has shape None"),
        (BitsAndBytes4(), nf4, state, torch.tensor([200]).byte(), "is no JSON"),
        (BitsAndBytes4("fp4"), nf4, "weight", nf4["weight"], "bitsandbytes__fp4 is missing"),
        (Fp8(), fp8, "weight", fp8["weight"].float(), "weight must be float8_e4m3fn"),
        (Fp8(), fp8, "weight_scale_inv", torch.ones(2, 1), "weight_scale_inv must be float32 or"),
        (
            *(Fp8(), fp8, "weight", torch.full((16, 64), 127).byte().view(torch.float8_e4m3fn)),
            "weight must be finite, got NaN",
        ),
    ]
    for format, tensors, name, tensor, message in cases:
        with pytest.raises(ValueError, match=message):
            format.check(tensors | {name: tensor}, 16, 64)
            format.layer(tensors | {name: tensor}, 16, 64, None)


@pytest.mark.parametrize("columns", [96, 32])
def test_rows_that_are_no_whole_blocks_are_refused(columns):
    tensors, _ = stored_layers.bitsandbytes(16, columns)
    with pytest.raises(ValueError, match="in features must be a multiple of 64"):
        BitsAndBytes4().check(tensors, 16, columns)
