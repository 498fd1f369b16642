"""One compiled model under the modes of PyTorch: autocast, no gradients, evaluation, any length."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from oracle import (
    assert_as_good_as_call,
    assert_program_as_good_as_eager,
    assert_vector_as_good_as_eager,
)
from small_model import (
    COUNTS,
    LOSS,
    SmallModel,
    gradients,
    gradients_of,
    gradients_to_reach,
    small_model,
    tokens,
)
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
    """Result and gradients are as good as those of the model as it is."""
    expected, actual = model(*inputs), call(*inputs)
    assert_as_good_as_call(actual, model, *inputs)
    assert actual.requires_grad == expected.requires_grad
    if expected.requires_grad:
        reach, got = gradients_to_reach(model, *inputs), gradients_of(model, call, *inputs)
        assert_vector_as_good_as_eager(got, *reach, "gradients")


def test_modes_in_turn() -> None:
    """Each call by the modes of its own time, whichever graphs there are already."""
    model = small_model(dropout=0.5)
    call, ids, twin = compiled(model), tokens(), copy.deepcopy(model).double()
    for _ in range(2):
        for training in (True, False):
            model.train(training)
            twin.train(training)
            for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                results = []
                with mode():
                    for run in (call, model, twin):
                        torch.manual_seed(1)  # the same elements are dropped
                        results.append(run(ids))
                actual, expected, _ = results
                assert_program_as_good_as_eager(*results)
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
    assert_vector_as_good_as_eager(*vectors, what="gradients")
    report = recorder.report()
    # The stream of residuals is float32, what is added to it is not: no add_rms_norm.
    assert report.count("rms_norm") == 4 and report.count("add_rms_norm") == 0, report
    assert report.count("silu_mul") == report.count("add_layer_norm") == 2, report
    assert all(refusal.reason for refusal in report.refusals)


def test_autocast_switched_between_calls() -> None:
    model, ids = small_model(), tokens()
    call, exact = compiled(model), copy.deepcopy(model).double()(ids)
    for enabled in (False, True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled):
            got, eager = call(ids), model(ids)
        assert_program_as_good_as_eager(got, eager, exact)


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
    wanted = []
    for plain in (copy.deepcopy(model), copy.deepcopy(model).double()):
        gradients_of(plain, plain, ids, ids)
        wanted.append(plain.tokens.weight.grad)
    model.head.weight = torch.nn.Parameter(model.tokens.weight.detach().clone())
    assert_step(model, call, ids, ids)
    parts = model.tokens.weight.grad, model.head.weight.grad
    assert all(part is not None and not torch.allclose(wanted[0], part) for part in parts)
    assert_program_as_good_as_eager(parts[0] + parts[1], *wanted)  # type: ignore[operator]
