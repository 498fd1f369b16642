"""`fusewheel.patch`: fused layers in one model of transformers, and back."""

from __future__ import annotations

import copy
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.transformers._layers import cast_of, gated_forward
from integrations.tiny_models import SIZES, assert_steps_of, build, tokens
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
# Where each rounds, and what its gated block is.
MODELS = {
    "Llama": ("llama", "silu"),
    "Mistral": ("llama", "silu"),
    "Qwen3": ("llama", "silu"),
    "Gemma2": ("gemma", "gelu, tanh"),
    "Olmo2": ("torch", "silu"),
    "Phi3": ("llama", "silu"),
}


def step(model: Any, ids: Tensor) -> list[Tensor]:
    """The logits and the loss, and all gradients as one vector."""
    model.zero_grad(set_to_none=True)
    out = model(input_ids=ids, labels=ids, use_cache=False)
    out.loss.backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return [out.logits.detach(), torch.cat(gradients)]


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_computes_the_same(name: str) -> None:
    model = build(name)
    exact, plain = copy.deepcopy(model).double(), copy.deepcopy(model)
    report = fusewheel.patch(model)
    cast, gate = MODELS[name]
    found = list(report.replaced.values())
    assert found.count(f"rms_norm ({cast})") >= 5
    assert found.count(f"gated block ({gate})") == SIZES["num_hidden_layers"]
    assert report.replaced[""] == "attention and cross_entropy" and not report.left
    assert model.config._attn_implementation == "fusewheel"
    assert list(model.state_dict()) == list(plain.state_dict())
    # The norms of transformers compute in float32 whatever their dtype is: they are not exact.
    fusewheel.patch(exact)
    ids = tokens(2, 9)
    assert_steps_of(step(m, ids) for m in (model, plain, exact))
    fusewheel.unpatch(model)
    assert model.config._attn_implementation == plain.config._attn_implementation
    assert not any("forward" in vars(module) for module in model.modules())
    for got, want in zip(step(model, ids), step(plain, ids), strict=True):
        assert torch.equal(got, want)


def test_operators_are_called() -> None:
    model = build("Llama")
    fusewheel.patch(model)
    with torch.profiler.profile() as profiled:
        step(model, tokens(2, 9))
    names = {event.name for event in profiled.events()}
    for operator in ("rms_norm", "silu_mul", "attention", "cross_entropy"):
        assert f"fusewheel::{operator}" in names, operator


def test_modules_of_torch_and_no_model_of_transformers() -> None:
    model = nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8), nn.GELU("tanh"), nn.Linear(8, 8))
    x = torch.randn(3, 8)
    want = model(x)
    report = fusewheel.patch(model)
    assert report.replaced == {"0": "layer_norm", "1": "rms_norm (torch)", "2": "gelu"}
    assert str(report) == "1 x layer_norm\n1 x rms_norm (torch)\n1 x gelu"
    torch.testing.assert_close(model(x), want)
    with pytest.raises(ValueError, match=r"patched already; fusewheel\.unpatch"):
        fusewheel.patch(model)
    fusewheel.unpatch(model)
    assert torch.equal(model(x), want)
    with pytest.raises(ValueError, match="model is not patched"):
        fusewheel.unpatch(model)


class HalfRMSNorm(nn.Module):
    """Looks like one, and halves."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(16)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, (16,), self.weight, self.eps) / 2


class OtherEpsilonRMSNorm(HalfRMSNorm):
    """Adds another number than it says."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, (16,), self.weight, 10 * self.eps)


class RaisingRMSNorm(HalfRMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


@pytest.mark.parametrize("kind", [HalfRMSNorm, OtherEpsilonRMSNorm, RaisingRMSNorm])
def test_what_computes_something_else_is_left_alone(kind: type[nn.Module]) -> None:
    model = nn.Sequential(kind())
    report = fusewheel.patch(model)
    assert report.left == {"0": f"{kind.__name__} computes something else than rms_norm"}
    assert not report.replaced and str(report).startswith("nothing replaced\nleft alone: 0: ")
    assert cast_of(model[0]) is None


def test_gated_blocks_that_compute_something_else_are_left_alone() -> None:
    mlp = build("Llama").model.layers[0].mlp
    assert gated_forward(mlp) is not None

    class Scaled(type(mlp)):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 1.01

    mlp.__class__ = Scaled
    assert gated_forward(mlp) is None
    mlp.act_fn = nn.ReLU()
    assert gated_forward(mlp) is None


def test_a_forward_that_somebody_replaced_stays() -> None:
    model = nn.Sequential(nn.LayerNorm(8))
    model[0].forward = torch.zeros_like
    report = fusewheel.patch(model)
    assert report.left == {"0": "its forward was replaced by somebody else"}
    fusewheel.unpatch(model)
    assert model[0].forward is torch.zeros_like


def test_without_attention_and_generating() -> None:
    model = build("Llama")
    ids = tokens(1, 5)
    want = model.generate(ids, max_new_tokens=6, do_sample=False)
    before = model.config._attn_implementation
    report = fusewheel.patch(model, attention=False)
    assert report.replaced[""] == "cross_entropy" and model.config._attn_implementation == before
    assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False), want)


def test_the_loss_of_a_batch_in_parts_and_of_shifted_labels() -> None:
    from fusewheel.transformers._patch import causal_loss
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits, labels = torch.randn(2, 7, 64).bfloat16(), tokens(2, 7)
    labels[0, 3] = -100
    for options in ({}, {"num_items_in_batch": 9}, {"num_items_in_batch": torch.tensor(9)}):
        want = ForCausalLMLoss(logits, labels, 64, **options)
        torch.testing.assert_close(causal_loss(logits, labels, 64, **options), want)
    shifted = {"shift_labels": labels}
    want = ForCausalLMLoss(logits, None, 64, **shifted)
    torch.testing.assert_close(causal_loss(logits, None, 64, **shifted), want)
