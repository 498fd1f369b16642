"""Mixtures of experts, captured without Dynamo: same texts, whichever code transformers chose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiler.test_captured_generation import compiled, graphs, programs, text
from compiler.test_equal_layers import runs
from compiler.test_models import SIZES, tokens
from nightly import NIGHTLY

transformers = pytest.importorskip("transformers")

ENGINE = {"inner": "engine"}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
OWN = {"num_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
MODELS: dict[str, dict[str, Any]] = {
    "Mixtral": LOCAL,
    "GptOss": {**LOCAL, "sliding_window": 12},
    "Qwen3Moe": {**OWN, "moe_intermediate_size": 32},
    "Olmoe": OWN,
    "Glm4Moe": {**ROUTED, "moe_intermediate_size": 32},
}
IN_THE_GATE = "Mixtral", "GptOss"


def build(name: str) -> Any:
    torch.manual_seed(0)
    sizes = {**SIZES, "num_hidden_layers": 4, "initializer_range": 0.3, **MODELS[name]}
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@pytest.mark.parametrize("experts", ["grouped_mm", "eager", "batched_mm"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_THE_GATE else NIGHTLY) for name in MODELS]
)
def test_texts(name: str, experts: str) -> None:
    """In float64, which PyTorch's own products of groups do not have: the loop is the reference."""
    model = build(name).double()
    model.set_experts_implementation(experts)
    twin = compiled(model, ENGINE)
    model.set_experts_implementation("eager")
    for length in (9, 1, 20):
        more = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_logits": True}
        ids = tokens(length, 1)
        found, expected = text(twin, ids, **more), text(model, ids, **more)
        # Routers compute in float32.
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert graphs() == 0 and programs(twin._compiled_call_impl) > 0


def test_routing_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which experts a token meets is in no program; equal layers are captured once."""
    model = build("Mixtral")
    assert runs(monkeypatch, model, freeze=False) == [0, 0]
    twin = compiled(model, ENGINE)
    for seed in range(4):
        torch.manual_seed(seed)
        ids = tokens(7, 1)
        assert torch.equal(text(twin, ids), text(model, ids))
    assert graphs() == 0 and programs(twin._compiled_call_impl) == 2
