"""Calls of a frozen language model without Dynamo: same texts, and what is left to Dynamo."""

from __future__ import annotations

import copy
import gc
import inspect
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fusewheel
import pytest
import torch
from compiler.test_caches import MODELS, OPTIONS, build
from compiler.test_models import tokens
from fusewheel._core.cache_argument import cache_argument
from fusewheel.compiler.entry import dynamo
from fusewheel.compiler.entry.direct.capture import Capture
from fusewheel.compiler.entry.direct.language_call import read_call
from fusewheel.compiler.match.rewrite import rewrite
from nightly import NIGHTLY
from torch._dynamo.utils import counters
from transformers import DynamicCache

INNER = [{"inner": "engine"}, {"inner": "none"}]


def frozen(model: Any, options: Any = INNER[0]) -> Any:
    twin = copy.deepcopy(model)
    torch.compiler.reset()
    counters.clear()
    return fusewheel.freeze(twin, options=options)


def graphs() -> int:
    """How many graphs Dynamo captured."""
    return counters["stats"]["unique_graphs"]


def text(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    found: torch.Tensor = model.generate(ids, **{"max_new_tokens": 7, **OPTIONS, **more})
    return found


def programs(model: Any) -> list[Any]:
    kinds = model._compiled_call_impl.direct._programs.values()
    return [program for found in kinds for program in found or ()]


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("Llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def one_layer() -> Any:
    return build("Llama")


@pytest.mark.parametrize("options", INNER, ids=str)
def test_programs_take_tokens_and_caches_only(one_layer: Any, options: Any) -> None:
    model = frozen(one_layer, options)
    text(model, tokens(1, 9))
    for program in programs(model):
        names = set(inspect.signature(program.run).parameters)
        assert names <= {"input_ids", "attention_mask", "position_ids", "keys_0", "values_0"}


@pytest.mark.parametrize("options", INNER, ids=str)
def test_llama(llama: Any, options: Any) -> None:
    """Prompts of any length take one program and tokens another one."""
    model = frozen(llama, options)
    for length in (9, 5, 14):
        ids = tokens(length, 1)
        assert torch.equal(text(model, ids), text(llama, ids))
    assert graphs() == 0 and len(programs(model)) == 2
    assert counters["fusewheel"]["append"] == 8


def test_leaves_no_graph(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program was made of is thousands of objects, which each collection would look at."""
    made: list[Any] = []
    whole = Capture.graph

    def graph(self: Capture, outputs: list[torch.Tensor]) -> Any:
        gm = whole(self, outputs)
        made.extend((weakref.ref(gm.graph), weakref.ref(self.fakes.mode)))
        return gm

    monkeypatch.setattr(Capture, "graph", graph)
    model = frozen(llama)
    text(model, tokens(5, 1))
    gc.collect()
    assert len(programs(model)) == 2
    assert [of() for of in made] == [None] * 4


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NIGHTLY) for name in MODELS if name != "Llama"]
)
def test_models(name: str) -> None:
    """Also with a window, with experts, and of GPT-2."""
    original = build(name)
    model = frozen(original)
    for length in (9, 5):
        ids = tokens(length, 1)
        assert torch.equal(text(model, ids), text(original, ids))


@NIGHTLY
@pytest.mark.parametrize("name", MODELS)
def test_ten_long_texts(name: str) -> None:
    """Eager's tokens, for prompts of many lengths."""
    original = build(name, num_hidden_layers=2, max_position_embeddings=512)
    model = frozen(original)
    torch.manual_seed(1)
    for length in range(3, 43, 4):
        ids = tokens(length, 1)
        expected = text(original, ids, max_new_tokens=200)
        assert torch.equal(text(model, ids, max_new_tokens=200), expected)


def test_a_prompt_of_one_token(one_layer: Any) -> None:
    model, ids = frozen(one_layer), tokens(1, 1)
    assert torch.equal(text(model, ids), text(one_layer, ids))
    assert graphs() == 0


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"num_beams": 3}, marks=NIGHTLY),
        pytest.param({"num_return_sequences": 2, "num_beams": 2}, marks=NIGHTLY),
    ],
)
def test_batches_and_beams(one_layer: Any, more: Any) -> None:
    model, ids = frozen(one_layer), tokens(6, 3)
    assert torch.equal(text(model, ids, **more), text(one_layer, ids, **more))


def test_padding(one_layer: Any) -> None:
    """Two programs serve every length and every padding; none at all has two of its own."""
    model = frozen(one_layer)
    for length, padding in ((6, 2), (9, 4), (6, 1)):
        ids = tokens(length, 2)
        ids[0, :padding] = 0
        mask = (ids != 0).long()
        found = text(model, ids, attention_mask=mask)
        assert torch.equal(found, text(one_layer, ids, attention_mask=mask))
    assert graphs() == 0 and len(programs(model)) == 2
    ids = tokens(6, 2)
    assert torch.equal(text(model, ids), text(one_layer, ids))
    assert graphs() == 0 and len(programs(model)) == 4


def test_masks_that_are_left_to_dynamo(one_layer: Any) -> None:
    """Of another dtype or rank, or one that does not know the tokens of the cache."""
    ids = tokens(6, 2)
    cache = DynamicCache(config=one_layer.config)
    whole = torch.ones(2, 6, dtype=torch.long)
    given = {"input_ids": ids, cache_argument(): cache}
    with torch.no_grad():
        for mask in (whole.bool(), whole[:, None, None] == 1, whole[:, 1:]):
            assert read_call({**given, "attention_mask": mask}) is None
        assert read_call({**given, "attention_mask": whole}) is not None


def test_numbers_of_tokens(one_layer: Any) -> None:
    """Older versions of transformers give them to the model: those that follow the cache."""
    model = frozen(one_layer)
    caches = [DynamicCache(config=one_layer.config) for _ in range(2)]
    with torch.no_grad():
        for begin, end in ((0, 6), (6, 7), (7, 8)):
            given = {"input_ids": tokens(8, 1)[:, begin:end], "use_cache": True}
            numbers = {"cache_position": torch.arange(begin, end)}
            found, expected = (
                one(**given, **more, **{cache_argument(): cache}).logits
                for one, cache, more in zip((model, one_layer), caches, (numbers, {}), strict=True)
            )
            torch.testing.assert_close(found, expected)
        assert len(programs(model)) == 2
        call = {"input_ids": tokens(1, 1), cache_argument(): caches[0]}
        for other in (torch.tensor([7]), torch.tensor([8, 9]), torch.tensor([8.0])):
            assert read_call({**call, "cache_position": other}) is None
        assert read_call({**call, "cache_position": torch.tensor([8])}) is not None


def test_several_tokens_after_others(one_layer: Any) -> None:
    """A chat goes on with its cache; what the cache was before stays as it was."""
    model = frozen(one_layer)
    ids = tokens(12, 1)
    with torch.no_grad():
        caches = []
        for one in (model, one_layer):
            first = one.generate(ids[:, :5], return_dict_in_generate=True, max_new_tokens=3)
            caches.append(first.past_key_values if "past_key_values" in first else first.cache)
        held = caches[0].layers[0].keys
        before = held.clone()
        name = "cache" if "cache" in first else "past_key_values"
        found, expected = (
            one.generate(torch.cat([ids, ids[:, :3]], 1), max_new_tokens=4, **{name: cache})
            for one, cache in zip((model, one_layer), caches, strict=True)
        )
    assert torch.equal(found, expected)
    assert torch.equal(held, before)
    assert graphs() == 0 and len(programs(model)) == 3


def test_values_of_parameters_may_change(llama: Any) -> None:
    model, ids = frozen(llama), tokens(9, 1)
    text(model, ids)
    other = copy.deepcopy(llama)
    with torch.no_grad():
        for one in (model, other):
            one.model.layers[0].mlp.up_proj.weight.mul_(-1.5)
            one.model.rotary_emb.inv_freq.mul_(0.5)
    assert torch.equal(text(model, ids), text(other, ids))
    assert graphs() == 0


@NIGHTLY  # a change looks for it in tests/compiler/test_freeze.py
def test_a_replaced_layer(one_layer: Any) -> None:
    model, ids = frozen(one_layer), tokens(9, 1)
    text(model, ids)
    other = copy.deepcopy(one_layer)
    layer = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size)
    model.lm_head = other.lm_head = layer
    model._compiled_call_impl._text._end = 0.0
    with pytest.warns(UserWarning, match="lm_head has changed"):
        assert torch.equal(text(model, ids), text(other, ids))


def test_training_afterwards(one_layer: Any) -> None:
    """Gradients are those of the model that was never frozen."""
    model, other, ids = frozen(one_layer), copy.deepcopy(one_layer), tokens(9, 2)
    exact = copy.deepcopy(one_layer).double()
    text(model, ids)
    for one in (model, other, exact):
        one.train().requires_grad_(True)
    with pytest.warns(UserWarning, match="no longer frozen"):
        model(input_ids=ids, labels=ids).loss.backward()
    for one in (other, exact):
        one(input_ids=ids, labels=ids).loss.backward()
    got, eager, right = (
        torch.cat([p.grad.double().flatten() for p in one.parameters()])
        for one in (model, other, exact)
    )
    assert (got - right).norm() <= 2 * (eager - right).norm()


def test_patterns_that_are_switched_off(llama: Any) -> None:
    model, ids = frozen(llama), tokens(9, 1)
    text(model, ids)
    counters.clear()
    with fusewheel.compiler.disable("rope"):
        assert torch.equal(text(model, ids), text(llama, ids))
    assert graphs() == 0
    assert counters["fusewheel"]["rope"] == 0 and counters["fusewheel"]["append"] == 8


def test_threads(one_layer: Any) -> None:
    model = frozen(one_layer)
    prompts = [tokens(length, 1) for length in (5, 9, 12, 7)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda ids: text(model, ids), prompts))
    for ids, one in zip(prompts, found, strict=True):
        assert torch.equal(one, text(one_layer, ids))
    assert graphs() == 0


@NIGHTLY
def test_what_is_left_to_dynamo(one_layer: Any) -> None:
    """Hooks, a forward of the user's, autocast, and a call without a cache."""
    ids = tokens(9, 1)
    calls: list[Any] = []
    hooked, replaced = copy.deepcopy(one_layer), copy.deepcopy(one_layer)
    hooked.model.norm.register_forward_hook(lambda *_: calls.append(1))
    own = replaced.model.norm.forward
    replaced.model.norm.forward = lambda x: own(x) * 2
    for one in (hooked, replaced):
        model = frozen(one)
        assert torch.equal(text(model, ids), text(one, ids))
        assert programs(model) == [] and graphs() > 0
    model = frozen(one_layer)
    with torch.autocast("cpu", torch.bfloat16):
        text(model, ids)
    assert programs(model) == []
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, one_layer(ids).logits)
    assert programs(model) == []


@pytest.mark.parametrize("saved", [0.0, 1.0])
def test_without_options(llama: Any, monkeypatch: pytest.MonkeyPatch, saved: float) -> None:
    """Dynamo is left what generated code is faster for. A graph is rewritten once."""
    ran: list[Any] = []

    def noting(gm: Any, **given: Any) -> Any:
        ran.append(given["inner"])
        return rewrite(gm, **given)

    monkeypatch.setattr(dynamo, "rewrite", noting)
    monkeypatch.setattr(dynamo, "gain", lambda gm: saved)
    model = frozen(llama, None)
    cache = DynamicCache(config=llama.config)
    call = {"input_ids": tokens(9, 1), cache_argument(): cache, "use_cache": True}
    with torch.no_grad():
        program = model._compiled_call_impl.direct.program((), call)
    assert (program is None) == (saved > 0)
    assert ran == ["none"]


def test_a_model_that_changes_itself_is_put_back(one_layer: Any, monkeypatch: Any) -> None:
    kind = type(one_layer.model.norm)
    forward = kind.forward

    def counting(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.last = forward(self, x)
        return self.last

    monkeypatch.setattr(kind, "forward", counting)
    model, ids = frozen(one_layer), tokens(9, 1)
    found, expected = (text(one, ids, max_new_tokens=1) for one in (model, one_layer))
    assert torch.equal(found, expected)
    assert programs(model) == []
    assert type(model.model.norm.last) is torch.Tensor
