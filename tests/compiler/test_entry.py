"""The ways to call the backend, and what else a program does with a compiled model."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from oracle import assert_as_good_as_call, assert_vector_as_good_as_eager
from small_model import COUNTS, SmallModel, gradients_of, gradients_to_reach, small_model, tokens
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters

assert fusewheel
Tensor = torch.Tensor
OPTIONS = {"inner": "eager"}
pytestmark = pytest.mark.filterwarnings(
    # Dynamo looks at it itself, after a graph break.
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)


def compiled(function: Any, **settings: Any) -> Any:
    """By the entry point, as users do."""
    return torch.compile(function, backend="fusewheel", options=OPTIONS, **settings)


def _as_module(model: SmallModel) -> Callable[..., Tensor]:
    return compiled(model)


def _as_method(model: SmallModel) -> Callable[..., Tensor]:
    return compiled(model.forward)


def _in_place(model: SmallModel) -> Callable[..., Tensor]:
    model.compile(backend="fusewheel", options=OPTIONS)
    return model


def _by_layer(model: SmallModel) -> Callable[..., Tensor]:
    for number, layer in enumerate(model.layers):
        model.layers[number] = compiled(layer)
    return model


@pytest.mark.matrix
@pytest.mark.parametrize("way", [_as_module, _as_method, _in_place, _by_layer])
def test_ways_to_compile(way: Callable[[SmallModel], Callable[..., Tensor]]) -> None:
    model, ids = small_model(), tokens()
    reach, names = gradients_to_reach(model, ids), list(model.state_dict())
    counters.clear()
    call = way(model)
    got = gradients_of(model, call, ids)
    assert_vector_as_good_as_eager(got, *reach, "gradients")
    assert counters["fusewheel"] == COUNTS
    assert [name.replace("_orig_mod.", "") for name in model.state_dict()] == names


def test_state_of_a_compiled_model() -> None:
    model, ids = small_model(), tokens()
    call = compiled(model)
    before = call(ids)
    other = small_model(seed=1)
    call.load_state_dict({f"_orig_mod.{name}": value for name, value in other.state_dict().items()})
    assert not torch.allclose(call(ids), before)
    assert_as_good_as_call(call(ids), other, ids)
    saved = {name.removeprefix("_orig_mod."): v for name, v in call.state_dict().items()}
    assert saved.keys() == model.state_dict().keys()
    call.to(torch.float64)
    torch.testing.assert_close(call(ids), other.double()(ids))


def _deepcopy(model: Any) -> Any:
    return copy.deepcopy(model)


def _pickle(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def _save(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("take", [_deepcopy, _pickle, _save])
@pytest.mark.parametrize("way", [_as_module, _in_place])
def test_copies_of_a_compiled_model(way: Any, take: Callable[[Any], Any]) -> None:
    """They compute the same, and share nothing with what they were taken of."""
    model, ids = small_model(), tokens()
    call = way(model)
    before = call(ids).detach()
    other = take(call)
    torch.testing.assert_close(other(ids), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    torch.testing.assert_close(call(ids), before)
    plain = small_model()
    plain.load_state_dict(getattr(other, "_orig_mod", other).state_dict())
    assert_as_good_as_call(other(ids), plain, ids)


def test_disabled_part() -> None:
    model, ids = small_model(layers=2), tokens()
    reach = gradients_to_reach(model, ids)
    layer: Any = model.layers[0]
    layer.forward = torch.compiler.disable(layer.forward)
    counters.clear()
    got = gradients_of(model, compiled(model), ids)
    assert_vector_as_good_as_eager(got, *reach, "gradients")
    assert counters["fusewheel"] == COUNTS


@pytest.mark.matrix
def test_graph_break_inside() -> None:
    model, ids = small_model(layers=2), tokens()
    reach = gradients_to_reach(model, ids)
    layer: Any = model.layers[0]
    forward = layer.forward

    def broken(x: Tensor) -> Tensor:
        y: Tensor = forward(x)
        torch._dynamo.graph_break()
        return y

    layer.forward = broken
    counters.clear()
    got = gradients_of(model, compiled(model), ids)
    assert_vector_as_good_as_eager(got, *reach, "gradients")
    assert counters["fusewheel"]["silu_mul"] == 2


def test_exceptions_of_the_model() -> None:
    """They arrive as they are, and the next call works."""
    model, ids = small_model(), tokens()

    def function(ids: Tensor, good: bool) -> Tensor:
        logits = model(ids)
        if not good:
            raise KeyError("mine")
        return logits

    call = compiled(function)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            call(ids, False)
        assert_as_good_as_call(call(ids, True), model, ids)


@pytest.mark.matrix
def test_exception_of_an_operator() -> None:
    """What the replaced operations say of a target that is no class is said all the same."""
    call = compiled(F.cross_entropy)
    logits, good = torch.randn(3, 5), torch.tensor([0, 4, 2])
    torch.testing.assert_close(call(logits, good), F.cross_entropy(logits, good))
    with pytest.raises((IndexError, RuntimeError)):
        call(logits, torch.tensor([0, 5, 2]))
    torch.testing.assert_close(call(logits, good), F.cross_entropy(logits, good))


@pytest.mark.parametrize("warm", [True, False], ids=["compiled before", "compiled by them"])
def test_threads(warm: bool) -> None:
    """Several threads at once, each with its own input, mode and gradient."""
    model = small_model()
    call, results, errors = compiled(model), {}, []
    inputs = [tokens(seed=number) for number in range(6)]
    if warm:
        call(inputs[0])
    start = threading.Barrier(len(inputs))

    def work(number: int) -> None:
        try:
            start.wait()
            with torch.set_grad_enabled(number % 2 == 0):
                for _ in range(10):
                    results[number] = call(inputs[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for number, ids in enumerate(inputs):
        assert_as_good_as_call(results[number], model, ids)
        assert results[number].requires_grad == (number % 2 == 0)


def test_reduce_overhead() -> None:
    """CUDA graphs mean nothing on a CPU: the results are those of every other mode."""
    layer, x = small_model().layers[0], torch.randn(2, 3, 16)
    call = torch.compile(layer, backend="fusewheel", mode="reduce-overhead")
    reach = gradients_to_reach(layer, x)
    for _ in range(3):
        assert_as_good_as_call(call(x), layer, x)
    got = gradients_of(layer, call, x)
    assert_vector_as_good_as_eager(got, *reach, "gradients")


def test_wrong_settings_are_errors() -> None:
    layer, x = small_model().layers[0], torch.randn(2, 3, 16)
    with pytest.raises(RuntimeError, match="Either mode or options"):
        torch.compile(layer, backend="fusewheel", mode="reduce-overhead", options=OPTIONS)
    for inner in ("eager", "aot_eager"):
        call = torch.compile(layer, backend="fusewheel", options={"inner": inner, "nope": 1})
        with pytest.raises(BackendCompilerFailed, match=f"'{inner}' takes no options.*nope"):
            call(x)
    with pytest.raises(BackendCompilerFailed, match="inner is 3, expected a name or a callable"):
        torch.compile(layer, backend="fusewheel", options={"inner": 3})(x)
