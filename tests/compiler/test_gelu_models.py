"""Unmodified Hugging Face models with GELU, in its formulas, as a function and gated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from nightly import models_in_ways

assert fusewheel
transformers = pytest.importorskip("transformers")
Tensor = torch.Tensor


def _gpt2() -> tuple[Any, dict[str, Tensor]]:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    config = transformers.GPT2Config(**sizes, **dropout, bos_token_id=1, eos_token_id=2)
    return transformers.GPT2LMHeadModel(config), {"input_ids": _tokens()}


def _bert() -> tuple[Any, dict[str, Tensor]]:
    config = transformers.BertConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=64,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    return transformers.BertForMaskedLM(config), {"input_ids": _tokens()}


def _t5() -> tuple[Any, dict[str, Tensor]]:
    config = transformers.T5Config(
        d_model=32,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        vocab_size=64,
        dropout_rate=0,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    inputs = {"input_ids": _tokens(), "decoder_input_ids": _tokens()}
    return transformers.T5ForConditionalGeneration(config), inputs


def _vit() -> tuple[Any, dict[str, Tensor]]:
    config = transformers.ViTConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=16,
        patch_size=4,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    pixels = torch.randn(2, 3, 16, 16).bfloat16().float()
    return transformers.ViTForImageClassification(config), {"pixel_values": pixels}


def _tokens() -> Tensor:
    return torch.randint(3, 64, (2, 12))


# All have 2 layers; T5 has 2 more in its decoder, BERT a gelu more in its head.
WAYS = {
    "fp32": (torch.float32, "aot_eager"),
    "bf16": (torch.bfloat16, "aot_eager"),
    "fp32-none": (torch.float32, "none"),
}
MODELS: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "gpt2": (_gpt2, {"gelu": 2}),
    "bert": (_bert, {"gelu": 3}),
    "t5": (_t5, {"gelu_mul": 4}),
    "vit": (_vit, {"gelu": 2}),
}
PATTERNS = {"gelu", "gelu_mul", "gelu_mul_packed"}


def _step(model: Any, call: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Logits and every gradient of one training step."""
    model.zero_grad(set_to_none=True)
    logits = call(**inputs).logits
    torch.manual_seed(1)
    logits.backward(torch.randn(logits.shape).bfloat16().to(logits))
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **gradients}


def _vector(results: dict[str, Tensor], part: set[str]) -> Tensor:
    return torch.cat([results[name].double().flatten() for name in sorted(part)])


def _own(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name in PATTERNS}


@pytest.mark.parametrize(("name", "dtype", "inner"), models_in_ways(MODELS, WAYS))
def test_training_step(compare: Any, name: str, dtype: torch.dtype, inner: str) -> None:
    make, counts = MODELS[name]
    model, inputs = make()
    model = model.bfloat16().to(dtype).train()
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    compiled, recorder = compare.compile(model, inner, fullgraph=True)
    actual, eager = _step(model, compiled, given), _step(model, model, given)
    assert _own(recorder.report().counts()) == counts, recorder.report()
    assert not [r for r in recorder.report().refusals if r.pattern in PATTERNS]
    twin = copy.deepcopy(model).double()
    wide = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    exact = _step(twin, twin, wide)
    assert actual.keys() == eager.keys() == exact.keys()
    assert all(value.dtype == dtype for value in actual.values())
    for part in ({"logits"}, exact.keys() - {"logits"}):
        # As one vector and by its length: which single error is the larger one is left to chance.
        results = [_vector(result, part) for result in (actual, eager, exact)]
        assert (results[0] - results[2]).norm() <= 2 * (results[1] - results[2]).norm()


def test_dynamic_length(compare: Any) -> None:
    model, _ = _gpt2()
    model = model.train()
    names = {"logits", *(name for name, _ in model.named_parameters())}
    compiled, recorder = compare.compile(model, "eager", dynamic=True)
    for _ in range(2):
        for length in (12, 17, 9):
            inputs = {"input_ids": torch.randint(3, 64, (2, length))}
            twin = copy.deepcopy(model).double()
            calls = (model, compiled), (model, model), (twin, twin)
            got, eager, exact = (_vector(_step(*c, inputs), names) for c in calls)
            assert (got - exact).norm() <= 2 * (eager - exact).norm()
    assert _own(recorder.report().counts()) == {"gelu": 2 * recorder.graphs}
