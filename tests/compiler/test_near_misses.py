"""What patterns replace in small graphs, what they leave and why, with the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiler.graphs import captured
from compiler.near_misses import CASES, OUTCOMES, outcome
from fresh import fresh
from fusewheel.compiler import rewrite
from fusewheel.compiler.cost import attention
from fusewheel.compiler.match.registry import known_patterns
from torch import Tensor

assert fresh
WANTED = dict(line.split(" -> ", 1) for line in OUTCOMES.read_text().splitlines())


@pytest.fixture(autouse=True)
def _on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which processors attention pays on is tested by test_attention_cost.py."""
    monkeypatch.setattr(attention, "loss", lambda *args, **kwargs: None)


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_it(name: str) -> None:
    text, (wanted, *found) = outcome(CASES[name])
    assert text == WANTED[name]
    for results in found:
        for actual, value in zip(results, wanted, strict=True):
            half = {} if value.itemsize > 2 else {"rtol": 0.05, "atol": 0.05}
            torch.testing.assert_close(actual, value, equal_nan=True, **half)
            assert actual.requires_grad == value.requires_grad


# A graph for each pattern that is for CPUs alone.
ON_A_CPU: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "attention": (CASES["sdpa"].function, CASES["sdpa"].inputs),
    "causal_attention": (
        lambda q, k, v: F.scaled_dot_product_attention(
            *(q, k, v), torch.ones(6, 8, dtype=torch.bool, device=q.device).tril()
        ),
        CASES["sdpa"].inputs,
    ),
    "gelu": (CASES["gelu"].function, CASES["gelu"].inputs),
    "grouped_attention": (CASES["repeated"].function, CASES["repeated"].inputs),
    "grouped_linear": (
        lambda x, weight, i: torch.bmm(weight[i], x.unsqueeze(-1)),
        (torch.ones(3, 64), torch.ones(2, 64, 64), torch.tensor([1, 0, 1])),
    ),
    "linear": (
        lambda x, w: F.linear(x, w),
        (torch.ones(3, 8).bfloat16(), torch.ones(4, 8).bfloat16()),
    ),
    "softmax_attention": (CASES["written"].function, CASES["written"].inputs),
}


@pytest.mark.parametrize("name", ON_A_CPU)
def test_what_is_for_a_cpu_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWHEEL_COMPILER_AVX512", "0")
    function, inputs = ON_A_CPU[name]
    patterns = [pattern for pattern in known_patterns() if pattern.name == name]
    for device, count in (("cpu", {name: 1}), ("meta", {})):
        report = rewrite(captured(function, *(t.to(device) for t in inputs)), patterns=patterns)
        assert report.counts() == count, report
    assert "on a CPU" in str(report.refusals), report


def test_class_weights_of_any_number(compare: Any) -> None:
    """No graph with fixed sizes can show it."""
    x, target, weight = (t.clone() for t in CASES["loss_weights"].inputs)
    compiled, recorder = compare.compile(lambda x, t, w: F.cross_entropy(x, t, w))
    torch._dynamo.mark_dynamic(x, 1)
    torch._dynamo.mark_dynamic(weight, 0)
    assert torch.equal(compiled(x, target, weight), F.cross_entropy(x, target, weight))
    assert "the number of class weights is symbolic" in str(recorder.report().refusals)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_the_norm_of_another_dtype_than_its_weight(compare: Any) -> None:
    x, weight = CASES["rms"].inputs[0].bfloat16(), CASES["rms"].inputs[1]
    report = compare.bits(lambda x, w: F.rms_norm(x, (16,), w, 1e-5), x, weight)
    assert report.counts() == {}, report
    assert "the weight is torch.float32, the input torch.bfloat16" in str(report.refusals), report


def test_every_line_has_a_case() -> None:
    assert list(WANTED) == list(CASES)
