"""Experts of models of transformers with quantised weights, beside the same numbers in float."""

from __future__ import annotations

import copy
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fusewheel.quantization import QuantizedExperts, dequantize_blocks
from integrations.test_experts import EXPERTS, MIXTURE, MODELS, experts_of, transformers
from integrations.tiny_models import SIZES, tokens
from oracle import assert_program_as_good_as_eager
from torch import Tensor

# Whole blocks of every kind.
WIDTHS = {"hidden_size": 64, "moe_intermediate_size": 64, "intermediate_size": 64}
KINDS = ("Q4_1", "Q8_0", "NF4", "MXFP4", "FP8")


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    options = SIZES | MIXTURE | MODELS[request.param] | WIDTHS
    if request.param == "Olmoe":
        options["head_dim"] = 16  # its norms are as wide as the model
    config = getattr(transformers, f"{request.param}Config")(**options)
    made = getattr(transformers, f"{request.param}ForCausalLM")(config).eval()
    made.set_experts_implementation("eager")
    return made


def decoded(module: QuantizedExperts, experts: Any) -> Any:
    """The experts with the numbers that the blocks stand for."""
    twin = copy.deepcopy(experts)
    for name, layer in (("gate_up_proj", module.up), ("down_proj", module.down)):
        weight = dequantize_blocks(layer.blocks, layer.kind)
        twin._parameters[name].data = weight.transpose(1, 2) if twin.is_transposed else weight
    return twin


def results(module: Any, dtype: torch.dtype, exact: bool = False) -> list[Tensor]:
    """What experts make of some tokens, and the gradients of what is not quantised."""
    biases = [p for n, p in module.named_parameters() if n.endswith("bias")]
    for i, bias in enumerate(biases):
        values = Make(dtype, seed=i)(*bias.shape, scale=0.3)
        bias.data, bias.grad = values.double() if exact else values, None
    x = Make(dtype)(37, WIDTHS["hidden_size"])
    weights, indices = fusewheel.route(Make(seed=9)(37, EXPERTS), 2)
    given = x, weights.to(dtype)
    x, weights = ((t.double() if exact else t).requires_grad_() for t in given)
    y = module(x, indices, weights)
    grad = Make(dtype, seed=5)(*y.shape)
    y.backward(grad.to(y.dtype))
    biases.sort(key=lambda bias: bias.shape[1])  # their names differ
    return [y.detach(), x.grad, weights.grad, *(bias.grad for bias in biases)]


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(model: Any, kind: str) -> None:
    experts = copy.deepcopy(experts_of(model))
    twin = copy.deepcopy(experts)
    module = QuantizedExperts.from_experts(experts, kind)
    base = decoded(module, twin)
    got = results(module, torch.float32)
    eager = results(copy.deepcopy(base), torch.float32)
    exact = results(copy.deepcopy(base).double(), torch.float32, exact=True)
    for i, values in enumerate(zip(got, eager, exact, strict=True)):
        assert_program_as_good_as_eager(*values, what=f"result {i}")


def test_a_whole_model(model: Any) -> None:
    quantised = copy.deepcopy(model)
    report = fusewheel.quantize_(quantised, "int8")
    experts = [name for name, m in quantised.named_modules() if isinstance(m, QuantizedExperts)]
    assert experts and set(experts) <= {swap.name for swap in report.swapped}
    assert not any(p.dim() == 3 for p in quantised.parameters()), "experts in float are left"
    with torch.no_grad():
        got, want = (m(input_ids=tokens(2, 9)).logits for m in (quantised, model))
    assert (got - want).norm() < 0.05 * want.norm()
    again = fusewheel.quantize_(quantised, "int8")
    assert not again.swapped
    reached = copy.deepcopy(quantised)
    x = torch.randn(1, 4, WIDTHS["hidden_size"], requires_grad=True)
    reached(inputs_embeds=x).logits.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_the_state_loads_into_a_model_on_meta(model: Any) -> None:
    quantised = copy.deepcopy(model)
    fusewheel.quantize_(quantised, "int4")
    empty = copy.deepcopy(model).to("meta")
    fusewheel.quantize_(empty, "int4")
    missing, unexpected = empty.load_state_dict(quantised.state_dict(), assign=True, strict=False)
    assert not missing and not unexpected


def test_a_saved_model_is_loaded_again(model: Any, tmp_path: Any) -> None:
    quantised = copy.deepcopy(model)
    fusewheel.transformers.save_quantized(quantised, tmp_path)
    loaded = fusewheel.transformers.load_quantized(tmp_path)
    with torch.no_grad():
        got, want = (m(input_ids=tokens(1, 5)).logits for m in (loaded, quantised))
    torch.testing.assert_close(got, want)


def test_experts_that_cannot_be_quantised_are_left_with_a_reason(model: Any) -> None:
    twin = copy.deepcopy(model)
    module = experts_of(twin)
    module.register_forward_hook(lambda *_: None)
    report = fusewheel.quantize_(twin, "int4", filter_fn=lambda module, name: False)
    reasons = {skip.name.rpartition(".")[2]: skip.reason for skip in report.skipped}
    assert "hooks" in next(s.reason for s in report.skipped if s.name.endswith("experts"))
    assert "the filter says no" in reasons.values()
