"""A Llama that peft has adapted: trained, with its adapters switched off, and merged."""

from __future__ import annotations

from typing import Any

import fusewheel
import pytest
import torch
from compiler.test_models import LOSS, build, settled, tokens
from oracle import assert_as_good_as_call
from torch import Tensor
from torch._dynamo.utils import counters

assert fusewheel
peft = pytest.importorskip("peft")
# peft reads an attribute that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
# Those of keys have none: of the two results of the first layer's rope only one has a gradient.
TARGETS = ["q_proj", "v_proj", "gate_proj", "down_proj"]
# Of one layer, the last norm included.
COUNTS = {"rms_norm": 1, "add_rms_norm": 2, "rope": 1, "silu_mul": 1}


def _adapted(dtype: torch.dtype) -> Any:
    """Its adapters are float32 in either case, and none of their halves is zero."""
    model = build("Llama", dtype, num_hidden_layers=1)
    config = peft.LoraConfig(target_modules=TARGETS, init_lora_weights=False)
    return peft.get_peft_model(model, config)


def _compiled(model: Any) -> Any:
    counters.clear()
    options = {"inner": "none"}
    return torch.compile(model, backend="fusewheel", options=options, fullgraph=True)


def _gradients(model: Any, call: Any, ids: Tensor) -> Tensor:
    """Of the adapters, the only ones there are."""
    model.zero_grad(set_to_none=True)
    call(input_ids=ids, labels=ids).loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(found) == 2 * len(TARGETS) and all("lora_" in name for name in found)
    return torch.cat([gradient.flatten() for gradient in found.values()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_training_step(dtype: torch.dtype) -> None:
    model, ids = _adapted(dtype), tokens()
    got, expected = (_gradients(model, call, ids) for call in (_compiled(model), model))
    assert settled(counters["fusewheel"]) == COUNTS | LOSS
    assert counters["stats"]["unique_graphs"] == 1
    exact = _gradients(model.double(), model, ids)
    assert got.dtype == expected.dtype == torch.float32
    assert (got - exact).norm() <= 2 * (expected - exact).norm()


def test_switched_off_and_merged() -> None:
    model, ids = _adapted(torch.float32).eval(), tokens()
    call = _compiled(model)
    with torch.no_grad():
        adapted = call(input_ids=ids).logits
        with model.disable_adapter():
            plain = call(input_ids=ids).logits
            assert_as_good_as_call(plain, model, input_ids=ids)
        model.merge_adapter()
        merged = call(input_ids=ids).logits
        assert_as_good_as_call(merged, model, input_ids=ids)
    assert (plain - adapted).norm() > 0.01 * plain.norm()
    assert counters["fusewheel"]["rope"] == counters["stats"]["unique_graphs"] == 3
