"""Rounding to stored blocks, and the layers that hold them."""

from __future__ import annotations

import copy

import fusewheel
import gguf
import pytest
import torch
from fusewheel.ops.linear._blocks import FP4, NF4
from fusewheel.quantization import (
    EmbeddingBlocks,
    LinearBlocks,
    dequantize_blocks,
    dequantize_int4,
    dequantize_int8,
    quantize_blocks,
    quantize_int4,
    quantize_int8,
)
from torch import nn

KINDS = ("NF4", "FP4", "MXFP4", "FP8")


def weight(rows: int = 9, columns: int = 256) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 0.05


@pytest.mark.parametrize(("kind", "table"), [("NF4", NF4), ("FP4", FP4)])
def test_codes_are_the_nearest_of_the_table(kind, table):
    groups = weight().double().unflatten(1, (-1, 64))
    scale = groups.abs().amax(-1, keepdim=True)
    choices = (torch.tensor(table, dtype=torch.float64) * scale.unsqueeze(-1)).expand(9, 4, 64, 16)
    best = (choices - groups.unsqueeze(-1)).abs().amin(-1)
    got = dequantize_blocks(quantize_blocks(weight(), kind), kind).unflatten(1, (-1, 64))
    # The number is rounded, and so is its product with the scale.
    rounding = got.abs().double() * torch.finfo(torch.float32).eps
    assert (((got - groups).abs() - best).abs() <= rounding).all()
    assert torch.equal(got.abs().amax(-1), scale.float().squeeze(-1))


def test_mxfp4_is_that_of_gguf():
    want = gguf.quantize(weight().numpy(), gguf.GGMLQuantizationType.MXFP4)
    want = torch.from_numpy(want).unflatten(1, (-1, 17))
    got = quantize_blocks(weight(), "MXFP4")
    assert torch.equal(dequantize_blocks(got, "MXFP4"), dequantize_blocks(want, "MXFP4"))


def test_fp8_is_rounded_by_torch():
    groups = weight().unflatten(1, (-1, 64))
    scale = groups.abs().amax(-1, keepdim=True) / 448
    want = (groups / scale).to(torch.float8_e4m3fn).float() * scale
    assert torch.equal(dequantize_blocks(quantize_blocks(weight(), "FP8"), "FP8"), want.flatten(1))


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("NF4", 0.08, 0.1), ("FP4", 0.1, 0.14), ("MXFP4", 0.1, 0.13), ("FP8", 0.02, 0.03)],
)
def test_errors_are_those_of_the_documentation(kind, low, high):
    exact = weight(64, 1024)
    error = dequantize_blocks(quantize_blocks(exact, kind), kind) - exact
    assert low < error.norm() / exact.norm() < high


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_and_large_and_tiny_groups(kind):
    exact = torch.zeros(3, 64)
    exact[1], exact[2] = torch.linspace(-1, 1, 64) * 1e30, torch.linspace(-1, 1, 64) * 1e-30
    got = dequantize_blocks(quantize_blocks(exact, kind), kind)
    assert torch.equal(got[0], exact[0])
    for row in (1, 2):
        error = got[row].double() - exact[row].double()
        assert error.norm() < 0.2 * exact[row].double().norm()


def test_codes_with_halves_are_those_of_int4_and_int8():
    exact = weight(64, 256)
    want = dequantize_int4(*quantize_int4(exact, 32)), dequantize_int8(*quantize_int8(exact, 32))
    for kind, own in zip(("Q4_1", "Q8_0"), want, strict=True):
        assert torch.equal(dequantize_blocks(quantize_blocks(exact, kind), kind), own)
    equal, huge = torch.full((1, 32), 0.5), torch.full((1, 32), 1e9)
    for kind in ("Q4_1", "Q8_0"):
        got = dequantize_blocks(quantize_blocks(equal, kind), kind)
        # Scale and smallest number are rounded to float16.
        assert ((got - equal).abs() <= equal * torch.finfo(torch.float16).eps / 2).all()
        with pytest.raises(ValueError, match=f"float16 scales of {kind}, got 1e.09"):
            quantize_blocks(huge, kind)


def test_what_cannot_be_rounded_is_refused():
    with pytest.raises(ValueError, match=r"kind must be one of NF4, .*, Q8_0, got 'Q4_K'"):
        quantize_blocks(weight(), "Q4_K")
    with pytest.raises(ValueError, match="in features a multiple of 64, got"):
        quantize_blocks(weight(3, 96), "NF4")
    with pytest.raises(ValueError, match="must be finite"):
        quantize_blocks(weight() * torch.inf, "NF4")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(128, 64), nn.Linear(64, 96, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


@pytest.mark.parametrize("kind", KINDS)
def test_quantize_a_model(kind):
    torch.manual_seed(0)
    model = Model()
    exact = copy.deepcopy(model)
    report = fusewheel.quantize_(model, kind.lower())
    assert report.kind == kind.lower()
    assert [swap.name for swap in report.swapped] == ["first", "last"]
    assert report.bytes_after < 0.35 * report.bytes_before
    assert isinstance(model.first, LinearBlocks)
    assert torch.equal(model.first.bias, exact.first.bias)
    with torch.no_grad():
        for name in ("first", "last"):
            layer = model.get_submodule(name)
            exact.get_submodule(name).weight.copy_(dequantize_blocks(layer.blocks, layer.kind))
    x = torch.randn(5, 128)
    torch.testing.assert_close(model(x), exact(x))


def test_only_what_the_filter_wants():
    model = Model()
    fusewheel.quantize_(model, "nf4", filter_fn=lambda module, name: name == "last", group_size=64)
    assert type(model.first) is nn.Linear and isinstance(model.last, LinearBlocks)


def test_a_state_dictionary_loads_on_meta(tmp_path):
    model = Model()
    fusewheel.quantize_(model, "mxfp4")
    torch.save(model.state_dict(), tmp_path / "m.pt")
    with torch.device("meta"):
        other = Model()
    fusewheel.quantize_(other, "mxfp4")
    other.load_state_dict(torch.load(tmp_path / "m.pt"), assign=True)
    x = torch.randn(3, 128)
    assert torch.equal(model(x), other(x))


def test_a_cast_leaves_blocks_and_casts_the_bias():
    model = Model()
    fusewheel.quantize_(model, "nf4")
    before = model.first.blocks.clone()
    model.bfloat16()
    assert torch.equal(model.first.blocks, before)
    assert model.first.bias.dtype == torch.bfloat16
    assert model(torch.randn(2, 128, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_an_adapter_beside_it_trains():
    model = Model()
    fusewheel.quantize_(model, "nf4")
    x = torch.randn(4, 128, requires_grad=True)
    model(x).square().sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    assert model.first.bias.grad is not None


def test_layers_refuse_what_are_no_blocks():
    blocks = quantize_blocks(weight(), "NF4")
    for layer in (LinearBlocks, EmbeddingBlocks):
        with pytest.raises(ValueError, match=f"{layer.__name__}: kind must be one of Q4_0"):
            layer(blocks, "nf4")
        with pytest.raises(ValueError, match=rf"{layer.__name__}: blocks must be uint8 .* 18\]"):
            layer(blocks, "Q4_0")
    with pytest.raises(ValueError, match="must have 3 dimensions"):
        LinearBlocks(blocks[0], "NF4")
