"""Text generation of models with peft's adapters, which are captured without Dynamo."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import fusewheel
import pytest
import torch
from compiler.test_caches import build
from compiler.test_captured_generation import NONE, compiled, graphs, text
from compiler.test_models import tokens
from fusewheel.compiler.entry.direct.alike_layers import is_alike
from fusewheel.compiler.entry.direct.calls import DirectCalls
from fusewheel.compiler.entry.direct.unchanged import Unchanged
from torch._dynamo.utils import counters

peft = pytest.importorskip("peft")
# peft reads an attribute that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
TARGETS = ["q_proj", "v_proj", "down_proj"]


@pytest.fixture
def model() -> Any:
    """With two adapters, neither of which adds zeros; the first one is active."""
    config = peft.LoraConfig(target_modules=TARGETS, init_lora_weights=False)
    adapted = peft.get_peft_model(build("Llama", num_hidden_layers=2), config)
    adapted.add_adapter("other", config)
    return adapted.double().eval()


def _in_place(model: Any) -> Any:
    return compiled(model)


def _wrapped(model: Any) -> Any:
    return torch.compile(model, backend="fusewheel", options=NONE)


def _inside(model: Any) -> Any:
    twin = compiled(model)
    del twin._compiled_call_impl
    twin.get_base_model().compile(backend="fusewheel", options=NONE)
    return twin


def _frozen(model: Any) -> Any:
    twin = compiled(model)
    return fusewheel.freeze(twin, options=NONE)


def _logits(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of each new token, as `generate` sees them."""
    more = {"output_logits": True, "return_dict_in_generate": True}
    found: Any = text(model, ids, attention_mask=torch.ones_like(ids), **more)
    return found.logits


def _assert_same(twin: Any, model: Any) -> None:
    for length in (9, 5):
        ids = tokens(length, 1)
        torch.testing.assert_close(_logits(twin, ids), _logits(model, ids))


@pytest.mark.parametrize("how", [_in_place, _wrapped, _inside, _frozen])
def test_however_it_is_compiled(how: Callable[[Any], Any], model: Any) -> None:
    """The compiled model is peft's, and the one inside writes the text."""
    counters.clear()
    twin = how(model)
    with _counted() as seen:
        _assert_same(twin, model)
    assert graphs() == 0 and seen == ["prompt", "token"]


def test_where_generated_code_would_save_little(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamo, which it needs, would take more."""
    monkeypatch.setattr("fusewheel.compiler.entry.dynamo.gain", lambda gm: 0.08)
    twin, ids = compiled(model, None), tokens(5, 1)
    assert torch.equal(text(twin, ids), text(model, ids))
    assert graphs() == 0


@contextlib.contextmanager
def _counted() -> Iterator[list[str]]:
    """What was captured in the block."""
    seen: list[str] = []
    plain = DirectCalls._captured

    def captured(self: Any, call: Any, *arguments: Any) -> Any:
        found = plain(self, call, *arguments)
        seen.append("token" if call.past else "prompt")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectCalls, "_captured", captured)
        yield seen


def _other(model: Any) -> None:
    model.set_adapter("other")


def _scale(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "set_scale"):
            module.set_scale("default", 3.0)


def _off(model: Any) -> None:
    model.base_model.disable_adapter_layers()


def _merged(model: Any) -> None:
    model.merge_adapter()


def _merged_and_off(model: Any) -> None:
    """The next call takes the adapter out of the weights."""
    model.merge_adapter()
    model.base_model.disable_adapter_layers()


CHANGES = [_other, _scale, _off, _merged, _merged_and_off]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_adapters(change: Callable[[Any], None], model: Any) -> None:
    twin = compiled(model)
    _assert_same(twin, model)
    ids = tokens(5, 1)
    before = _logits(model, ids)
    for each in (twin, model):
        change(each)
    _assert_same(twin, model)
    # Merging changes the rounding only.
    assert change is _merged or not torch.equal(before[0], _logits(model, ids)[0])


# One in a dictionary, one in an attribute, one in a list.
@pytest.mark.parametrize("change", [_scale, _off, _merged])
def test_a_frozen_model_says_so(change: Callable[[Any], None], model: Any) -> None:
    twin = _frozen(model)
    _assert_same(twin, model)
    for each in (twin, model):
        change(each)
    ids = tokens(5, 1)
    with pytest.warns(UserWarning, match="no longer frozen, because a"):
        found = text(twin, ids, max_new_tokens=2)
    assert torch.equal(found, text(model, ids, max_new_tokens=2))


def test_switched_off_for_a_text(model: Any) -> None:
    twin = compiled(model)
    _assert_same(twin, model)
    with twin.disable_adapter(), model.disable_adapter():
        _assert_same(twin, model)
    _assert_same(twin, model)
    assert graphs() == 0


def test_another_base(model: Any) -> None:
    """What was made for the first one is not called for the second."""
    twin, other = compiled(model), copy.deepcopy(model)
    _assert_same(twin, model)
    with torch.no_grad():
        other.get_base_model().model.norm.weight.mul_(-1)
    twin.base_model.model = other.get_base_model()
    _assert_same(twin, other)


def test_an_adapter_for_each_text(model: Any) -> None:
    """By hooks of peft, which are Dynamo's."""
    twin, ids = compiled(model), tokens(5, 2)
    assert torch.equal(text(twin, ids), text(model, ids))
    names = {"adapter_names": ["default", "other"], "attention_mask": torch.ones_like(ids)}
    found, expected = (text(each, ids, **names) for each in (twin, model))
    assert torch.equal(found, expected)


def test_direct_calls(model: Any) -> None:
    """Calls of peft's model itself, which are no calls of the one inside."""
    twin, ids = _frozen(model), tokens(5, 2)
    with torch.no_grad():
        torch.testing.assert_close(twin(input_ids=ids).logits, model(input_ids=ids).logits)


def test_layers_with_other_adapters_are_not_repeated(model: Any) -> None:
    first, second = model.get_base_model().model.layers
    assert is_alike(first, second)
    second.self_attn.q_proj.scaling["default"] = 3.0
    assert not is_alike(first, second)
    _assert_same(compiled(model), model)
    second.self_attn.q_proj.scaling["default"] = first.self_attn.q_proj.scaling["default"]
    second.self_attn.q_proj.merged_adapters.append("default")
    assert not is_alike(first, second)


def test_lists_are_put_back() -> None:
    layer = torch.nn.Linear(2, 2)
    layer.names = ["a"]  # type: ignore[assignment]
    before = Unchanged(layer)
    assert not before.restore()
    names: list[str] = layer.names  # type: ignore[assignment]
    names.append("b")
    assert before.restore() and names == ["a"] and layer.names is names
