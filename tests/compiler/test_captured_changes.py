"""Every change of a model whose text generation was captured is noticed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compiler.test_captured_generation import (
    assert_same_logits,
    captured,
    in_float64,
    programs,
)
from compiler.test_models import tokens
from fusewheel.compiler.entry.direct.unchanged import Watched
from transformers.models.llama import modeling_llama


@pytest.fixture
def model() -> Any:
    return in_float64()


def _attribute(model: Any) -> None:
    model.model.norm.variance_epsilon = 0.5


def _configuration(model: Any) -> None:
    model.config.num_hidden_layers = 0  # no layer is called, though there is one


def _parameter(model: Any) -> None:
    model.model.norm.weight = torch.nn.Parameter(torch.full_like(model.model.norm.weight, 2.0))


def _memory(model: Any) -> None:
    model.model.norm.weight.data = torch.full_like(model.model.norm.weight, 2.0)


def _values(model: Any) -> None:
    with torch.no_grad():
        model.model.norm.weight.mul_(-1)


def _strides(model: Any) -> None:
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data = torch.flip(weight.data, [0]).t().contiguous().t()


def _shapes(model: Any) -> None:
    mlp = model.model.layers[0].mlp
    for weight, dim in (
        (mlp.gate_proj.weight, 0),
        (mlp.up_proj.weight, 0),
        (mlp.down_proj.weight, 1),
    ):
        weight.data = torch.cat((weight.data, weight.data), dim)


def _buffer(model: Any) -> None:
    rotary = model.model.rotary_emb
    rotary.register_buffer("inv_freq", rotary.inv_freq * 2, persistent=False)


def _layer(model: Any) -> None:
    model.model.layers[0] = copy.deepcopy(model.model.layers[0])
    model.model.layers[0].mlp.down_proj.weight.data.mul_(-1)


def _activation(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.Tanh()


def _hook(model: Any) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda module, args, result: result * -1)


def _own_forward(model: Any) -> None:
    plain = model.model.norm.forward
    model.model.norm.forward = lambda x: -plain(x)


def _whole_forward(model: Any) -> None:
    plain = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        result.logits = -result.logits
        return result

    model.forward = forward


CHANGES: list[Callable[[Any], None]] = [
    *(_attribute, _configuration, _parameter, _memory, _values, _strides, _shapes, _buffer),
    *(_layer, _activation, _hook, _own_forward, _whole_forward),
]


def test_a_configuration_that_names_itself(model: Any) -> None:
    model.config.whole = model.config
    twin = captured(model)
    twin.config.num_hidden_layers = model.config.num_hidden_layers = 0
    assert_same_logits(twin, model, tokens(6, 1))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_of_the_model(change: Any, model: Any) -> None:
    twin, ids = captured(model), tokens(6, 1)
    change(twin)
    change(model)
    assert_same_logits(twin, model, ids)


@pytest.mark.parametrize("change", [_attribute, _memory, _hook], ids=lambda change: change.__name__)
def test_without_quick_looks(change: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this torch has none, everything is looked at each time."""
    monkeypatch.setattr("fusewheel._torch.modules._version", None)
    test_a_change_of_the_model(change, model)


def test_looks_again_only_after_changes(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where inference mode has begun, in which tensors look different to Dynamo."""
    twin, ids, looks = captured(model), tokens(6, 1), list[bool]()
    plain = Watched._holds_the_same

    def holds_the_same(self: Watched) -> bool:
        looks.append(plain(self))
        return looks[-1]

    monkeypatch.setattr(Watched, "_holds_the_same", holds_the_same)
    assert_same_logits(twin, model, ids)
    assert looks == []
    twin.train()
    twin.eval()
    assert_same_logits(twin, model, ids)
    assert looks == [True], "it is as it was"
    with torch.inference_mode():
        assert_same_logits(twin, model, ids)
    assert looks == [True, True]
    _attribute(twin)
    _attribute(model)
    assert_same_logits(twin, model, ids)
    assert looks == [True, True, False, True], "what was made anew is looked at once"


@contextlib.contextmanager
def _replaced(home: Any, name: str, new: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, name, new)
        yield


@contextlib.contextmanager
def _registered() -> Iterator[None]:
    functions = modeling_llama.ALL_ATTENTION_FUNCTIONS
    plain = functions["sdpa"]

    def halved(*args: Any, **kwargs: Any) -> Any:
        out, weights = plain(*args, **kwargs)
        return out / 2, weights

    functions["sdpa"] = halved
    try:
        yield
    finally:
        functions["sdpa"] = plain


@contextlib.contextmanager
def _hook_of_all_modules() -> Iterator[None]:
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, result: (
            -result if isinstance(module, modeling_llama.LlamaMLP) else None
        )
    )
    try:
        yield
    finally:
        handle.remove()


OTHERS: dict[str, Callable[[], Any]] = {
    "a method of a class": lambda: _replaced(
        modeling_llama.LlamaRMSNorm, "forward", lambda self, x: -self.weight * x
    ),
    "a function of the model's file": lambda: _replaced(
        modeling_llama, "apply_rotary_pos_emb", lambda q, k, *args, **kwargs: (q, k)
    ),
    "torch.nn.functional": lambda: _replaced(
        torch.nn.functional, "silu", lambda x, inplace=False: torch.tanh(x)
    ),
    "an attention function": _registered,
    "a hook of all modules": _hook_of_all_modules,
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_a_change_outside_of_the_model(change: Any, model: Any) -> None:
    twin, ids = captured(model), tokens(6, 1)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        with change():
            assert not torch.allclose(model(input_ids=ids).logits, before)
            assert_same_logits(twin, model, ids)
    assert_same_logits(twin, model, ids)


class _Negated(torch.nn.Parameter):
    """A weight whose products have the other sign."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            result: torch.Tensor = func(*args, **(kwargs or {}))
        return -result if func is torch.nn.functional.linear else result


def test_a_tensor_class(model: Any) -> None:
    """What it does to operations is its own: the model is left to Dynamo."""
    twin, ids = captured(model), tokens(6, 1)
    for each in (twin, model):
        linear = each.model.layers[0].mlp.down_proj
        linear.weight = _Negated(linear.weight.detach())
    assert_same_logits(twin, model, ids)
    assert programs(twin._compiled_call_impl) == 0
