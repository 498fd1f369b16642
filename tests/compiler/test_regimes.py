"""One compiled model under the modes of PyTorch: autocast, no gradients, evaluation, any length."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from oracle import assert_as_good_as_call, assert_program_as_good_as_eager
from small_model import COUNTS, LOSS, SmallModel, gradients, gradients_of, small_model, tokens
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

assert fusewheel
Tensor = torch.Tensor
pytestmark = pytest.mark.filterwarnings(
    # Dynamo looks at it itself, after a graph break.
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)


def compiled(function: Any, inner: Any = "eager", **settings: Any) -> Any:
    """By the entry point, as users do."""
    return torch.compile(function, backend="fusewheel", options={"inner": inner}, **settings)


def assert_step(model: SmallModel, call: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Result and gradients are those of the model as it is, to float32's precision."""
    expected, actual = model(*inputs), call(*inputs)
    assert_as_good_as_call(actual, model, *inputs)
    assert actual.requires_grad == expected.requires_grad
    if expected.requires_grad:
        right, got = gradients_of(model, model, *inputs), gradients_of(model, call, *inputs)
        assert (got - right).norm() <= 1e-5 * right.norm()


def test_modes_in_turn() -> None:
    """Each call by the modes of its own time, whichever graphs there are already."""
    model = small_model(dropout=0.5)
    call, ids = compiled(model), tokens()
    for _ in range(2):
        for training in (True, False):
            model.train(training)
            for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                with mode():
                    torch.manual_seed(1)
                    expected = model(ids)
                    torch.manual_seed(1)
                    actual = call(ids)
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
                assert actual.requires_grad == expected.requires_grad
                assert actual.is_inference() == expected.is_inference()
    assert not torch.equal(model.train()(ids), model.eval()(ids))
    assert counters["fusewheel"]["silu_mul"] > 0


def test_a_parameter_frozen_and_trained_again() -> None:
    model = small_model()
    call, ids = compiled(model), tokens()
    for trained in (True, False, True):
        model.layers[0].requires_grad_(trained)
        assert_step(model, call, ids, ids)
        assert (model.layers[0].norm.weight.grad is not None) == trained  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(compare: Any, dtype: torch.dtype) -> None:
    """Values, gradients and the dtype of everything that a layer computes."""
    model, ids = small_model(), tokens(length=16, batch=8)
    exact = copy.deepcopy(model).double()

    def run(model: SmallModel, enabled: bool) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype, enabled):
            x = first = model.tokens(ids)
            for layer in model.layers:
                x = layer(x)
            y = model.layers[0].gate(x)
            return first, x, y, model(ids, ids)

    def results(run: Callable[..., tuple[Tensor, ...]], model: SmallModel, on: bool) -> Any:
        model.zero_grad(set_to_none=True)
        outputs = run(model, on)
        outputs[-1].backward()
        return [*(o.detach() for o in outputs), gradients(model)]

    call, recorder = compare.compile(run, "aot_eager", fullgraph=True)
    got, eager = results(call, model, True), results(run, model, True)
    assert [o.dtype for o in got[:3]] == [torch.float32, torch.float32, dtype]
    *outputs, vectors = zip(got, eager, results(run, exact, False), strict=True)
    for number, triple in enumerate(outputs):
        assert_program_as_good_as_eager(*triple, what=f"result {number}")
    # By its length: which single error is the largest one is a matter of chance.
    assert (vectors[0] - vectors[2]).norm() <= 2 * (vectors[1] - vectors[2]).norm()
    report = recorder.report()
    # The stream of residuals is float32, what is added to it is not: no add_rms_norm.
    assert report.count("rms_norm") == 4 and report.count("add_rms_norm") == 0, report
    assert report.count("silu_mul") == report.count("add_layer_norm") == 2, report
    assert all(refusal.reason for refusal in report.refusals)


def test_autocast_switched_between_calls() -> None:
    model, ids = small_model(), tokens()
    call = compiled(model)
    for enabled in (False, True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled):
            assert call(ids).dtype == model(ids).dtype
            difference = (call(ids) - model(ids)).norm() / model(ids).norm()
        assert difference <= (0.02 if enabled else 1e-6)


@pytest.mark.parametrize("marked", [True, False], ids=["mark_dynamic", "automatic"])
def test_any_length(marked: bool) -> None:
    """The second length compiles once more where nothing was announced, further ones never."""
    model, counter = small_model(), CompileCounterWithBackend("aot_eager")
    call, counts = compiled(model, counter), []
    for length in (6, 9, 13, 5):
        ids = tokens(length, batch=3)
        if marked:
            torch._dynamo.mark_dynamic(ids, 1)
        assert_step(model, call, ids, ids)
        counts.append(counter.frame_count)
    assert counts == ([1, 1, 1, 1] if marked else [1, 2, 2, 2])


def test_tied_weights() -> None:
    """The gradient is the sum of both uses, each of which alone is something else."""
    model, ids = small_model(), tokens()
    counters.clear()
    call = compiled(model, "aot_eager", fullgraph=True)
    assert_step(model, call, ids, ids)
    assert counters["fusewheel"] == COUNTS | LOSS
    total = model.tokens.weight.grad.clone()  # type: ignore[union-attr]
    model.head.weight = torch.nn.Parameter(model.tokens.weight.detach().clone())
    assert_step(model, call, ids, ids)
    parts = model.tokens.weight.grad, model.head.weight.grad
    assert all(part is not None and not torch.allclose(total, part) for part in parts)
    torch.testing.assert_close(parts[0] + parts[1], total, rtol=1e-4, atol=1e-6)  # type: ignore[operator]
