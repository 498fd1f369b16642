"""peft's `prepare_model_for_kbit_training` of a model whose linear layers `quantize_` replaced."""

from __future__ import annotations

from typing import Any, Literal

import fusewheel
import pytest
import torch
from compiler.test_models import build, tokens
from torch import Tensor

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")


def _gradients(model: Any, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_a_prepared_model_trains_its_adapters(kind: Literal["int4", "int8"]) -> None:
    model, ids = build("Llama", torch.bfloat16, num_hidden_layers=2), tokens()
    fusewheel.quantize_(model, kind)
    prepared = peft.prepare_model_for_kbit_training(model)
    assert not any(p.requires_grad for p in prepared.parameters())
    assert {p.dtype for p in prepared.parameters()} == {torch.float32}
    config = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False)
    adapted = peft.get_peft_model(prepared, config).train()
    plain = _gradients(adapted, ids)
    assert len(plain) == 2 * 7 * 2 and all("lora_" in name for name in plain)

    forwards: list[None] = []
    layer = adapted.get_base_model().model.layers[0]
    layer.self_attn.q_proj.register_forward_hook(lambda *_: forwards.append(None))
    base = adapted.get_base_model()
    base.enable_input_require_grads()
    enable = getattr(base, "activation_checkpointing_enable", base.gradient_checkpointing_enable)
    enable()
    again = _gradients(adapted, ids)
    assert len(forwards) == 2, "the layer is computed once more for the backward"
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        assert torch.equal(gradient, again[name]), name
