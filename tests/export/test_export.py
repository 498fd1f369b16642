"""`fusewheel.export`: what is replaced, the values, and what a program has to go through."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import tiny_decoder
import torch
from oracle import assert_program_as_good_as_eager
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.nn import Module
from without_front import run_without_front

# Raised inside torch when it copies the description of a program.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "attn_implementation": "sdpa",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYER_NORMS = {"layer_norm": 1, "add_layer_norm": 4, "gelu": 2}
MODELS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "LlamaModel": (
        {},
        {"rms_norm": 1, "add_rms_norm": 4, "rope": 2, "silu_mul": 2, "grouped_attention": 2},
    ),
    "GPT2Model": ({}, LAYER_NORMS),
    "BertModel": ({}, LAYER_NORMS),
    "ViTModel": ({"image_size": 8, "patch_size": 4}, LAYER_NORMS),
}


class LastState(Module):
    """A model of transformers as a function of one tensor."""

    def __init__(self, model: Module, keyword: str) -> None:
        super().__init__()
        self.model, self.keyword = model, keyword

    def forward(self, x: Tensor) -> Tensor:
        cached = {} if self.keyword == "pixel_values" else {"use_cache": False}
        state: Tensor = self.model(**{self.keyword: x}, **cached)[0]
        return state


class RMSNorm(torch.nn.Module):
    """That of transformers, in the dtype of its input."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def build(name: str) -> tuple[Module, Tensor]:
    """A small random model whose norm weights are not all alike, and an input."""
    transformers = pytest.importorskip("transformers")
    settings, _ = MODELS[name]
    config = getattr(transformers, name.replace("Model", "Config"))(**SIZES, **settings)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    image = name == "ViTModel"
    x = torch.randn(4, 3, 8, 8) if image else torch.randn(4, 9, SIZES["hidden_size"])
    return LastState(model, "pixel_values" if image else "inputs_embeds"), x


def in_float64(model: Module) -> Module:
    wide = copy.deepcopy(model)
    for module in list(wide.modules()):
        for name, child in module.named_children():
            if type(child).__name__ == "LlamaRMSNorm":
                setattr(module, name, RMSNorm(child))
    return wide.double()


def assert_right(program: ExportedProgram, model: Module, *inputs: Tensor) -> None:
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    with torch.no_grad():
        got, eager = program.module()(*inputs), model(*inputs)
        assert_program_as_good_as_eager(got, eager, in_float64(model)(*wide))


def operators_in(program: ExportedProgram) -> set[str]:
    return {n.target._schema.name for n in program.graph.nodes if hasattr(n.target, "_schema")}


@pytest.mark.parametrize("name", MODELS)
def test_transformers(name: str) -> None:
    model, x = build(name)
    program = fusewheel.export(model, (x,))
    report = fusewheel.explain(program)
    assert report.counts() == MODELS[name][1], report
    assert_right(program, model, x)


def dynamic_program() -> ExportedProgram:
    sizes = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=2, max=32)}
    example = (tiny_decoder.tokens(),)
    return fusewheel.export(tiny_decoder.decoder(), example, dynamic_shapes=(sizes,))


def test_dynamic_sizes_are_kept() -> None:
    program, model = dynamic_program(), tiny_decoder.decoder()
    assert fusewheel.explain(program).counts() == tiny_decoder.COUNTS
    stock = torch.export.export(
        model,
        (tiny_decoder.tokens(),),
        dynamic_shapes=({0: Dim("batch", min=1, max=8), 1: Dim("length", min=2, max=32)},),
    )
    assert str(program.range_constraints) == str(stock.range_constraints)
    for batch, length in ((2, 7), (1, 32), (8, 2)):
        assert_right(program, model, tiny_decoder.tokens(batch, length))
    with pytest.raises(AssertionError, match="Guard failed"):
        program.module()(tiny_decoder.tokens(2, 33))


def test_strict() -> None:
    model, x = tiny_decoder.decoder(), tiny_decoder.tokens()
    program = fusewheel.export(model, (), {"tokens": x}, strict=True)
    assert fusewheel.explain(program).counts() == tiny_decoder.COUNTS
    torch.testing.assert_close(program.module()(tokens=x), model(x))


def test_decompositions() -> None:
    """They leave the operators alone, and what is left is core ATen."""
    model = tiny_decoder.decoder()
    program = dynamic_program().run_decompositions()
    names = operators_in(program)
    assert "fusewheel::rope" in names and "aten::linear" not in names
    assert_right(program, model, tiny_decoder.tokens(3, 5))


def test_a_decomposed_program_is_rewritten() -> None:
    model, x = tiny_decoder.decoder(), tiny_decoder.tokens()
    stock = torch.export.export(model, (x,)).run_decompositions()
    program = fusewheel.export(stock)
    counts = fusewheel.explain(program).counts()
    assert counts.keys() >= {"rms_norm", "add_rms_norm", "rope"}, counts
    assert_right(program, model, x)


def test_saved_and_loaded_without_the_front(tmp_path: Path) -> None:
    program, x = dynamic_program(), tiny_decoder.tokens(3, 5)
    torch.export.save(program, tmp_path / "model.pt2")
    run_without_front(
        f"""
program = torch.export.load({str(tmp_path / "model.pt2")!r})
assert "torch.ops.fusewheel.rope" in program.graph_module.code
x = torch.randint(48, (3, 5), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    torch.save((x, program.module()(x)), {str(tmp_path / "result.pt")!r})
"""
    )
    loaded_x, got = torch.load(tmp_path / "result.pt")
    assert torch.equal(loaded_x, x)
    model = tiny_decoder.decoder()
    with torch.no_grad():
        assert_program_as_good_as_eager(got, model(x), model.double()(x))


def test_unflatten() -> None:
    model, x = tiny_decoder.decoder(), tiny_decoder.tokens()
    module = torch.export.unflatten(dynamic_program())
    torch.testing.assert_close(module(x), model(x))
    assert module.norm2.weight.shape == (32,)


def test_a_given_program_is_left_as_it_is() -> None:
    model, x = tiny_decoder.decoder(), tiny_decoder.tokens()
    stock = torch.export.export(model, (x,))
    before = stock.graph_module.code
    program = fusewheel.export(stock)
    assert fusewheel.explain(program).counts() == tiny_decoder.COUNTS
    assert stock.graph_module.code == before and operators_in(stock).isdisjoint(
        name for name in operators_in(program) if name.startswith("fusewheel")
    )
    # The parameters are there once.
    pairs = zip(stock.parameters(), program.parameters(), strict=True)
    assert all(a is b for a, b in pairs)
    again = fusewheel.export(program)
    assert fusewheel.explain(again).counts() == {}
    assert again.graph_module.code == program.graph_module.code
