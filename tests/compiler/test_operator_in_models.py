"""Models whose attention becomes the operator: masks, windows, a soft cap and sinks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiler.test_attention_models import LAYERS, LENGTH, _hugging_face, _step
from fusewheel.compiler.cost import attention as cost
from nightly import NIGHTLY
from oracle import assert_program_as_good_as_eager

transformers = pytest.importorskip("transformers")
Tensor = torch.Tensor
OPERATOR = torch.ops.fusewheel.attention.default
CAUSAL, WINDOW = (-1, 0), (4, 0)
GROUPED = {"num_key_value_heads": 1, "head_dim": 16}
LAYER_TYPES = ["sliding_attention", "full_attention"]


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors are tiny."""
    monkeypatch.setattr(cost, "loss", lambda *sizes, **options: None)


def _of_sdpa(name: str, **settings: Any) -> torch.nn.Module:
    model: Any = _hugging_face(name, **GROUPED, **settings)
    model.set_attn_implementation("sdpa")
    return model


def _gemma() -> torch.nn.Module:
    settings = {"sliding_window": 5, "layer_types": LAYER_TYPES, "attn_logit_softcapping": 0.5}
    return _hugging_face("Gemma2", **GROUPED, **settings, query_pre_attn_scalar=16)


def _gpt_oss() -> torch.nn.Module:
    # All experts of each token: no choice that depends on rounding.
    experts: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 2}
    experts["experts_implementation"] = "batched_mm"
    settings = {"sliding_window": 5, "layer_types": LAYER_TYPES, "attention_dropout": 0.0}
    model = _hugging_face("GptOss", **GROUPED, **settings, **experts)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=1.0 if "sinks" in name else 0.2)
    return model


# The model, and the window and the soft cap of each layer.
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], list[tuple[int, int]], float]] = {
    "Llama": (lambda: _of_sdpa("Llama"), [CAUSAL] * 2, 0.0),
    "Mistral": (lambda: _of_sdpa("Mistral", sliding_window=5), [WINDOW] * 2, 0.0),
    "Gemma2": (_gemma, [WINDOW, CAUSAL], 0.5),
    "GptOss": (_gpt_oss, [WINDOW, CAUSAL], 0.0),
}


def _build(name: str, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.nn.Module, Tensor]:
    """The model, its twin in float64, and tokens."""
    model = MODELS[name][0]().to(dtype)
    return model, copy.deepcopy(model).double(), torch.randint(3, 64, (2, LENGTH))


def _check_calls(compare: Any, name: str) -> None:
    """Every layer calls the operator, with one head of keys for two of queries, and no mask."""
    calls = [n for gm in compare.graphs for n in gm.graph.nodes if n.target is OPERATOR]
    _, windows, softcap = MODELS[name]
    assert [tuple(call.args[5:7]) for call in calls] == windows
    for call in calls:
        assert call.args[4] is None and (call.args[3] is None) == (name != "GptOss")
        assert call.args[8] == pytest.approx(softcap)
        assert [n.meta["example_value"].shape[1] for n in call.args[:3]] == [2, 1, 1]


def models_in_dtypes(*before_a_change: str) -> pytest.MarkDecorator:
    """Every model in both dtypes; the night takes those that a change does not try."""
    return pytest.mark.parametrize(
        ("name", "dtype"),
        [
            pytest.param(
                name,
                dtype,
                id=f"{name}-{short}",
                marks=() if f"{name}-{short}" in before_a_change else NIGHTLY,
            )
            for name in MODELS
            for short, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
        ],
    )


# Every model once: what is matched and called is one code, whether gradients are needed or not.
@models_in_dtypes("Gemma2-fp32")
def test_training_step(compare: Any, name: str, dtype: torch.dtype) -> None:
    model, exact, ids = _build(name, dtype)
    call, recorder = compare.compile(model, "aot_eager")
    results = _step(call, model, ids), _step(model, model, ids), _step(exact, exact, ids)
    assert recorder.report().count("attention") == LAYERS, recorder.report()
    _check_calls(compare, name)
    for what, got in results[0].items():
        assert_program_as_good_as_eager(got, results[1][what], results[2][what], f"{name}: {what}")


@models_in_dtypes("Llama-fp32", "Mistral-fp32", "GptOss-bf16")
def test_inference(compare: Any, name: str, dtype: torch.dtype) -> None:
    model, exact, ids = _build(name, dtype)
    call, recorder = compare.compile(model.eval(), "none")
    with torch.no_grad():
        results = [run(input_ids=ids, use_cache=False)[0] for run in (call, model, exact.eval())]
    assert recorder.report().count("attention") == LAYERS, recorder.report()
    _check_calls(compare, name)
    assert_program_as_good_as_eager(*results, name)
