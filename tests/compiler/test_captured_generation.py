"""`generate` of compiled models without Dynamo: same texts, and what is left to Dynamo."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from compiler.test_caches import OPTIONS, build
from compiler.test_models import tokens
from fusewheel._core.cache_argument import cache_argument
from fusewheel._torch import compiled_module
from fusewheel.compiler.entry import generation
from fusewheel.compiler.entry.generation import Generating
from nightly import NIGHTLY
from torch._dynamo.utils import counters
from transformers import DynamicCache

NONE, ENGINE = {"inner": "none"}, {"inner": "engine"}


def in_float64() -> Any:
    """A small model; in float64 a captured one differs from it by next to nothing."""
    return build("Llama").double()


@pytest.fixture
def model() -> Any:
    return in_float64()


def graphs() -> int:
    """How many graphs Dynamo captured."""
    return counters["stats"]["unique_graphs"]


def compiled(model: Any, options: Any = NONE) -> Any:
    torch.compiler.reset()
    counters.clear()
    twin = copy.deepcopy(model)
    twin.compile(backend="fusewheel", options=options)
    return twin


def text(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    found: torch.Tensor = model.generate(ids, **{"max_new_tokens": 5, **OPTIONS, **more})
    return found


def programs(call: Any) -> int:
    return sum(len(found or ()) for found in call.direct._programs.values())


def assert_same_logits(twin: Any, model: Any, ids: torch.Tensor) -> None:
    """Of a prompt and of a token, by calls as `generate` makes them."""
    found, expected = map(logits, (twin, model), (ids, ids))
    torch.testing.assert_close(found, expected)


def captured(model: Any) -> Any:
    """A compiled model that would not notice a change without a check: it has its programs."""
    twin, ids = compiled(model, ENGINE), tokens(6, 1)
    text(twin, ids)
    assert_same_logits(twin, model, ids)
    assert programs(twin._compiled_call_impl) == 4 and graphs() == 0
    return twin


def logits(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    config = copy.copy(model.config)
    config.num_hidden_layers = len(model.model.layers)
    more = {cache_argument(): DynamicCache(config=config), "use_cache": True}
    with torch.no_grad():
        return [model(input_ids=part, **more).logits for part in (ids, ids[:, :1])]


@pytest.mark.parametrize("options", [None, NONE, ENGINE], ids=str)
def test_compiled_in_place(options: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of any length take one program and tokens another one; weights may require grad."""
    monkeypatch.setattr("fusewheel.compiler.entry.dynamo.WORTHWHILE_WITH_GUARDS", 1.0)
    twin = compiled(model, options)
    assert any(weight.requires_grad for weight in twin.parameters())
    for length in (9, 5, 14):
        ids = tokens(length, 1)
        assert torch.equal(text(twin, ids), text(model, ids))
    assert graphs() == 0 and programs(twin._compiled_call_impl) == 2


def test_through_the_wrapper(model: Any) -> None:
    counters.clear()
    wrapper = torch.compile(model, backend="fusewheel", options=NONE)
    for length in (9, 5):
        ids = tokens(length, 1)
        assert torch.equal(text(wrapper, ids), text(model, ids))
        assert "_compiled_call_impl" not in vars(model)
    assert graphs() == 0 and programs(wrapper.dynamo_ctx._fusewheel_generating) == 2


def test_compiled_forward(model: Any) -> None:
    """As the documentation of transformers compiles models."""
    counters.clear()
    twin, ids = copy.deepcopy(model), tokens(6, 1)
    twin.forward = torch.compile(twin.forward, backend="fusewheel", fullgraph=True, options=NONE)
    compiled = twin.forward
    for more in ({}, {"cache_implementation": "static"}):
        assert torch.equal(text(twin, ids, **more), text(model, ids))
        assert vars(twin)["forward"] is compiled and "_compiled_call_impl" not in vars(twin)
    generating = compiled_module.context_of_forward(twin)._fusewheel_generating
    assert graphs() == 0 and programs(generating) == 2
    # A call of one's own runs the compiled function.
    assert_same_logits(twin, model, ids)
    assert graphs() > 0


def test_another_forward_is_left_to_dynamo(model: Any) -> None:
    """A function of one's own, compiled or not, is what `generate` calls."""
    counters.clear()
    twin, ids, calls = copy.deepcopy(model), tokens(6, 1), list[int]()
    plain = twin.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return plain(*args, **kwargs)

    for twin.forward in (forward, torch.compile(forward, backend="fusewheel", options=NONE)):
        calls.clear()
        assert torch.equal(text(twin, ids), text(model, ids))
        assert calls and compiled_module.context_of_forward(twin) is None


def test_calls_outside_of_generate(model: Any) -> None:
    """A loop of one's own is captured after the first text, and a call with gradients is not."""
    twin, ids = compiled(model), tokens(6, 1)
    text(twin, ids)
    assert_same_logits(twin, model, ids)
    assert graphs() == 0
    twin(input_ids=ids, labels=ids).loss.backward()
    model(input_ids=ids, labels=ids).loss.backward()
    assert graphs() > 0
    for one, other in zip(twin.parameters(), model.parameters(), strict=True):
        # The angles of the rotary embedding are in float32.
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_code_of_ones_own_runs_in_every_call(model: Any) -> None:
    twin, seen, ids = captured(model), list[int](), tokens(6, 1)
    plain = twin.model.norm.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape[1])
        return plain(x)

    twin.model.norm.forward = forward
    text(twin, ids, max_new_tokens=2)
    text(twin, ids, max_new_tokens=2)
    assert seen == [6, 1, 6, 1]


def test_a_change_between_tokens(model: Any) -> None:
    ids, twin = tokens(6, 1), compiled(model)
    text(twin, ids)

    def changes(of: Any) -> Callable[..., torch.Tensor]:
        def change(read: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            of.model.norm.variance_epsilon = float(read.shape[1]) - 5.5
            return torch.zeros(1, dtype=torch.bool)

        return change

    expected = text(model, ids, stopping_criteria=[changes(model)])
    assert torch.equal(text(twin, ids, stopping_criteria=[changes(twin)]), expected)


def test_dropout_is_dynamos(model: Any) -> None:
    twin, ids = compiled(model), tokens(6, 1)
    twin.train()
    text(twin, ids)
    assert programs(twin._compiled_call_impl) == 0 and graphs() > 0
    twin.eval()
    assert torch.equal(text(twin, ids), text(model, ids))
    assert programs(twin._compiled_call_impl) == 2


def test_a_training_step_between_texts(model: Any) -> None:
    twin, ids = compiled(model), tokens(6, 1)
    for each in (twin, model):
        text(each, ids)
        step = torch.optim.SGD(each.parameters(), lr=0.1)
        each(input_ids=ids, labels=ids).loss.backward()
        step.step()
        text(each, ids)
    model.load_state_dict(twin.state_dict())
    assert_same_logits(twin, model, ids)


def test_a_model_that_changes_often_is_dynamos(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "_MOST_CHANGES", 1)
    twin, ids = compiled(model), tokens(6, 1)
    for eps in (1e-6, 1e-2, 1.0):
        model.model.norm.variance_epsilon = twin.model.norm.variance_epsilon = eps
        assert graphs() == 0
        assert torch.equal(text(twin, ids), text(model, ids))
    assert graphs() > 0
    assert twin._compiled_call_impl._watched is None, "it holds what the model drops"


def test_left_to_dynamo(model: Any) -> None:
    """Where it is switched off, or was told to compile in a way of its own."""
    ids = tokens(6, 1)
    expected = text(model, ids, max_new_tokens=1)
    with fusewheel.compiler.disable("capture"):
        twin = compiled(model)
        assert torch.equal(text(twin, ids, max_new_tokens=1), expected)
        assert graphs() == 1
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(text(twin, ids, max_new_tokens=1), expected)
        assert programs(twin._compiled_call_impl) == 0
    for options in ({"inner": "eager"}, {"inner": "aot_eager"}):
        twin = compiled(model, options)
        assert torch.equal(text(twin, ids, max_new_tokens=1), expected)
        assert not isinstance(twin._compiled_call_impl, Generating)


def test_other_backends_stay_as_they_are(model: Any) -> None:
    model.compile(backend="eager")
    own = model._compiled_call_impl
    text(model, tokens(5, 1))
    assert model._compiled_call_impl is own


@NIGHTLY
def test_compiled_layers_are_dynamos(model: Any) -> None:
    twin, ids = compiled(model), tokens(5, 1)
    twin.model.layers[0].compile(backend="eager")
    assert torch.equal(text(twin, ids), text(model, ids))
    assert programs(twin._compiled_call_impl) == 0


def test_part_of_something_that_is_compiled(model: Any) -> None:
    twin, ids = captured(model), tokens(6, 1)
    whole = torch.compile(
        lambda x: twin(x, use_cache=False).logits, backend="eager", fullgraph=True
    )
    with torch.no_grad():
        assert torch.equal(whole(ids), model(ids, use_cache=False).logits)
    assert fusewheel.explain(twin, ids).replacements


def test_copies_begin_anew(model: Any) -> None:
    ids = tokens(5, 1)
    wrapper = torch.compile(model, backend="fusewheel", options=NONE)
    expected = text(wrapper, ids)
    for whole in (wrapper, model):
        twin = copy.deepcopy(whole)
        twin.model.norm.variance_epsilon = 1.0
        assert not torch.equal(twin(ids).logits, model(ids).logits)
        text(twin, ids)
    assert torch.equal(text(wrapper, ids), expected)


def test_leaves_nothing_behind(model: Any) -> None:
    twin = compiled(model)
    text(twin, tokens(5, 1))
    gone = weakref.ref(twin)
    del twin
    gc.collect()
    assert gone() is None
