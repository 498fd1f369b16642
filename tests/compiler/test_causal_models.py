"""The masks that Hugging Face's decoders build: causal ones go, all others stay.

Without a cache, as in training, they find out from the positions whether a row holds several
sequences; by default these are consecutive.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compiler.test_models import build, step, tokens
from fusewheel._core.cache_argument import cache_argument
from nightly import NIGHTLY
from oracle import (
    assert_as_good_as_call,
    assert_program_as_good_as_eager,
    assert_step_as_good_as_eager,
)
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

transformers = pytest.importorskip("transformers")
LAYERS = 1
NOT_ALONE = "the mask is not known to be causal alone: "


def _build(name: str, dtype: torch.dtype = torch.float32, window: int | None = None) -> Any:
    settings = {"sliding_window": window} if name == "Mistral" else {}
    return build(name, dtype, num_hidden_layers=LAYERS, **settings)


def _found(report: Any) -> tuple[int, list[str]]:
    """The number of masks that went, and why others stayed."""
    kept = [r.reason for r in report.refusals if r.pattern == "causal_attention"]
    return report.count("causal_attention"), kept


def _vectors(results: dict[str, Tensor]) -> list[Tensor]:
    logits, loss, *gradients = results.values()
    return [logits, loss, torch.cat([gradient.flatten() for gradient in gradients])]


def _check_step(compare: Any, model: Any) -> Any:
    """A training step is as good as eager's; the report."""
    ids, twin = tokens(), copy.deepcopy(model).double()
    call, recorder = compare.compile(model, "aot_eager", fullgraph=True)
    runs = [
        step(m, run, ids, use_cache=False)
        for m, run in ((model, call), (model, model), (twin,) * 2)
    ]
    # That of the twin is computed in float32 all the same.
    rows = runs[2]["logits"][:, :-1].flatten(0, 1)
    runs[2]["loss"] = torch.nn.functional.cross_entropy(rows, ids[:, 1:].flatten())
    assert_step_as_good_as_eager(*map(_vectors, runs))
    return recorder.report()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Llama", torch.float32),
        pytest.param("Llama", torch.bfloat16, marks=NIGHTLY),
        *(
            pytest.param(name, torch.float32, marks=NIGHTLY)
            for name in ("Mistral", "Qwen2", "Gemma")
        ),
    ],
    ids=str,
)
def test_training_step(compare: Any, name: str, dtype: torch.dtype) -> None:
    report = _check_step(compare, _build(name, dtype))
    assert _found(report) == (LAYERS, []), report


def _logits(compare: Any, model: Any, **given: Any) -> tuple[int, list[str]]:
    """What was found in a call whose logits are those of the model as it is.

    A function in `given` makes the argument, which a call may change, for the model that is called.
    """
    call, recorder = compare.compile(model, "eager")
    twin = copy.deepcopy(model).double()
    with torch.no_grad():
        got, eager, exact = (
            run(**{key: value(of) if callable(value) else value for key, value in given.items()})
            for run, of in ((call, model), (model, model), (twin, twin))
        )
    assert_program_as_good_as_eager(got.logits, eager.logits, exact.logits)
    return _found(recorder.report())


def test_inference(compare: Any) -> None:
    model = _build("Llama").eval()
    assert _logits(compare, model, input_ids=tokens(), use_cache=False) == (LAYERS, [])


@NIGHTLY
def test_autocast(compare: Any) -> None:
    model, ids = _build("Llama"), tokens()
    call, recorder = compare.compile(model)
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = (step(model, run, ids, use_cache=False) for run in (call, model))
    assert _found(recorder.report()) == (LAYERS, []), recorder.report()
    for a, b in zip(_vectors(got), _vectors(expected), strict=True):
        assert a.dtype == b.dtype and (a - b).norm() <= 0.06 * b.norm()


@NIGHTLY
def test_any_length(compare: Any) -> None:
    model, counter = _build("Llama").eval(), CompileCounterWithBackend("eager")
    call, recorder = compare.compile(model, counter)
    for length in (16, 23, 9):
        ids = tokens(length)
        torch._dynamo.mark_dynamic(ids, 1)
        got = call(input_ids=ids, use_cache=False)
        assert_as_good_as_call(got.logits, model, input_ids=ids, use_cache=False)
    assert counter.frame_count == 1
    assert _found(recorder.report()) == (LAYERS, [])


def _mask() -> Tensor:
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[0, :5] = 0
    return mask


def _static(model: Any) -> Any:
    """With some tokens in it; how many, only the call knows."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=24)
    with torch.no_grad():
        model(input_ids=tokens(6), **{cache_argument(): cache})
    return cache


OTHER: dict[str, tuple[str, dict[str, Any], str]] = {
    "padding": ("Llama", {"attention_mask": _mask()}, "causal + padding"),
    # That nothing is padded shows in the values alone.
    "no_padding": ("Llama", {"attention_mask": torch.ones(2, 16)}, "causal + padding"),
    "sliding_window": ("Mistral", {"use_cache": False}, "sliding window [-4, 0]"),
    "packed_sequences": (
        "Llama",
        {"position_ids": torch.arange(16).remainder(6).expand(2, -1), "use_cache": False},
        "arbitrary",
    ),
    "static_cache": ("Llama", {cache_argument(): _static, "use_cache": True}, "arbitrary"),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_masks_are_kept(compare: Any, name: str) -> None:
    kind, given, mask = OTHER[name]
    model = _build(kind, window=5).eval()
    found = _logits(compare, model, input_ids=tokens(), **given)
    assert found == (0, [NOT_ALONE + mask])
