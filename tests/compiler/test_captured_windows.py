"""Models that see a window, captured without Dynamo: before it is full, and afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiler.test_caches import WINDOW, build
from compiler.test_captured_generation import compiled, graphs, programs, text
from compiler.test_models import SIZES, tokens
from fusewheel._core.cache_argument import cache_argument
from fusewheel.compiler.entry.direct import calls
from fusewheel.compiler.entry.direct.language_call import read_call
from fusewheel.engine.growing import append
from nightly import NIGHTLY
from transformers import DynamicCache

transformers = pytest.importorskip("transformers")

ENGINE = {"inner": "engine"}
SIZE = WINDOW["sliding_window"]
SOME = {**WINDOW, "use_sliding_window": True}
# Models of which all layers have a window, and of which some have.
ALL_LAYERS: dict[str, dict[str, Any]] = {"Mistral": {}, "Phi3": {}, "Starcoder2": {}}
SOME_LAYERS: dict[str, dict[str, Any]] = {
    "Gemma3Text": {},
    "Gemma2": {},
    "Olmo3": {},
    "Cohere2": {},
    "Qwen3": {"max_window_layers": 2},
    "SmolLM3": {"no_rope_layers": [1, 0, 1, 0]},
}
MODELS = {**ALL_LAYERS, **SOME_LAYERS}
IN_THE_GATE = "Mistral", "Gemma3Text"


def windowed(name: str) -> Any:
    """A small model in float64, where a captured one differs from it by next to nothing."""
    torch.manual_seed(0)
    kind = name.removesuffix("Text")
    sizes = {**SIZES, "num_hidden_layers": 4, "initializer_range": 0.3, **SOME, **MODELS[name]}
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval().double()


@pytest.fixture(scope="module")
def mistral() -> Any:
    return build("Mistral").double()


def empty(model: Any) -> Any:
    return DynamicCache(config=model.config)


def logits(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(input_ids=ids, use_cache=True, **{cache_argument(): cache})
    return torch.as_tensor(found.logits)


def next_token(cache: Any) -> Any:
    """What is read of the call for it."""
    with torch.no_grad():
        return read_call({"input_ids": tokens(1, 1), cache_argument(): cache})


def assert_same_call(twin: Any, model: Any, ids: torch.Tensor, caches: tuple[Any, Any]) -> None:
    """Logits, and all that the two caches know afterwards."""
    found, expected = (
        logits(one, ids, cache) for one, cache in zip((twin, model), caches, strict=True)
    )
    torch.testing.assert_close(found, expected)
    for own, other in zip(*(cache.layers for cache in caches), strict=True):
        assert own.cumulative_length == other.cumulative_length
        assert vars(own).keys() == vars(other).keys()
        torch.testing.assert_close((own.keys, own.values), (other.keys, other.values))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_THE_GATE else NIGHTLY) for name in MODELS]
)
def test_texts(name: str) -> None:
    """Prompts around the window's size; five programs, for any number of them."""
    model = windowed(name)
    twin = compiled(model, ENGINE)
    assert any(layer.is_sliding for layer in empty(model).layers)
    for length in (5, SIZE - 2, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE):
        ids = tokens(length, 1)
        more = {"max_new_tokens": 9, "return_dict_in_generate": True, "output_logits": True}
        found, expected = text(twin, ids, **more), text(model, ids, **more)
        torch.testing.assert_close(found.logits, expected.logits)
    assert graphs() == 0
    # A layer that is not repeated has the slice of transformers, which makes two cases more.
    assert programs(twin._compiled_call_impl) <= (7 if name == "Cohere2" else 5)


PARTS = [pytest.param(parts, marks=NIGHTLY) for parts in ((20, 4), (SIZE - 1, 2, 1), (1,))]


@pytest.mark.parametrize("parts", [(3, 7, 9), *PARTS], ids=str)
def test_several_tokens_after_others(parts: tuple[int, ...], mistral: Any) -> None:
    """A chat goes on with its cache, and the window fills between its parts."""
    twin, caches = compiled(mistral, ENGINE), (empty(mistral), empty(mistral))
    text(twin, tokens(4, 1), max_new_tokens=1)
    for count in (*parts, *[1] * SIZE):
        assert_same_call(twin, mistral, tokens(count, 1), caches)
    assert graphs() == 0


def test_padding(mistral: Any) -> None:
    twin = compiled(mistral, ENGINE)
    for length, padding in ((6, 2), (SIZE + 5, 1), (SIZE + 5, SIZE + 2)):
        ids = tokens(length, 2)
        ids[0, :padding] = 0
        mask = (ids != 0).long()
        more = {"attention_mask": mask, "max_new_tokens": SIZE}
        assert torch.equal(text(twin, ids, **more), text(mistral, ids, **more))
    assert graphs() == 0


@pytest.mark.parametrize("length", [5, *(pytest.param(SIZE + n, marks=NIGHTLY) for n in (-1, 8))])
def test_two_texts_that_continue_one_prefix(length: int, mistral: Any) -> None:
    """Neither changes the rows of the other one, before the window is full and afterwards."""
    twin, ids = compiled(mistral, ENGINE), tokens(length, 1)
    text(twin, ids, max_new_tokens=1)
    first = empty(mistral), empty(mistral)
    assert_same_call(twin, mistral, ids, first)
    second = copy.copy(first[0]), copy.deepcopy(first[1])
    second[0].layers = list(map(copy.copy, first[0].layers))  # the same tensors
    for _ in range(SIZE):
        for caches in (first, second):
            assert_same_call(twin, mistral, tokens(1, 1), caches)
    assert graphs() == 0


def test_crop_and_reset(mistral: Any) -> None:
    twin, caches = compiled(mistral, ENGINE), (empty(mistral), empty(mistral))
    text(twin, tokens(4, 1), max_new_tokens=1)
    assert_same_call(twin, mistral, tokens(9, 1), caches)
    for cache in caches:
        cache.crop(-3)
    for _ in range(SIZE):
        assert_same_call(twin, mistral, tokens(1, 1), caches)
    for cache in caches:
        cache.reset()
    assert_same_call(twin, mistral, tokens(5, 1), caches)
    assert graphs() == 0


def grown(model: Any, length: int) -> Any:
    """A cache as programs leave it after so many tokens."""
    cache = empty(model)
    size = model.config.head_dim
    for layer in cache.layers:
        rows = torch.ones(1, 2, min(length, SIZE - 1) if layer.is_sliding else length, size)
        layer.lazy_initialization(rows, rows)
        layer.keys, layer.values = append(layer.keys, rows), append(layer.values, rows)
        if layer.is_sliding:
            layer.cumulative_length = length
    return cache


def shorten(layer: Any) -> None:
    layer.keys, layer.values = layer.keys[:, :, 1:], layer.values[:, :, 1:]


def shorten_all(layer: Any) -> None:
    shorten(layer)
    layer.cumulative_length -= 1


CHANGES: dict[str, Callable[[Any], None]] = {
    "other number of tokens": lambda layer: setattr(layer, "cumulative_length", 4),
    "other window": lambda layer: setattr(layer, "sliding_window", 3),
    "fewer rows": shorten,
}


@pytest.mark.parametrize("length", [5, SIZE + 3])
@pytest.mark.parametrize("name", CHANGES)
def test_caches_that_are_left_to_dynamo(name: str, length: int, mistral: Any) -> None:
    """They do not hold the rows of the tokens that they say they have read."""
    cache = grown(mistral, length)
    found = next_token(cache)
    assert found is not None and found.past == length and found.slides
    CHANGES[name](cache.layers[0])
    assert next_token(cache) is None


def test_rows_may_lie_otherwise_but_keeping_more_is_a_kind_of_its_own(mistral: Any) -> None:
    cache = grown(mistral, SIZE + 3)
    kind = next_token(cache).kind
    layer = cache.layers[0]
    layer.keys = layer.keys.contiguous()
    assert next_token(cache).kind == kind
    layer.activate_past_recording()
    assert next_token(cache).kind != kind


def test_a_full_window_is_a_kind_of_its_own(mistral: Any) -> None:
    """Its number of rows stays the same, and before it grows."""
    kinds = [next_token(grown(mistral, length)).kind for length in (5, SIZE - 1, SIZE, SIZE + 3)]
    assert kinds[0] == kinds[1] != kinds[2] == kinds[3]


def test_layers_that_disagree() -> None:
    """All have read the same tokens, and those with one window keep tensors of one shape."""
    model = windowed("Gemma3Text")
    for change in (shorten_all, lambda layer: layer.activate_past_recording(), *CHANGES.values()):
        cache = grown(model, 5)
        assert next_token(cache) is not None
        change(next(layer for layer in cache.layers if layer.is_sliding))
        assert next_token(cache) is None


def test_full_layers_that_have_read_more() -> None:
    """What a full window keeps does not say how many tokens it has read."""
    kinds = ["sliding_attention", "full_attention"]
    cache = grown(build("Gemma3Text", num_hidden_layers=2, layer_types=kinds), SIZE + 4)
    found = next_token(cache)
    assert found is not None and found.past == SIZE + 4
    cache.layers[0].cumulative_length -= 1
    assert next_token(cache) is None


def test_more_cases_than_are_kept(mistral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are left to Dynamo."""
    monkeypatch.setattr(calls, "_MOST_OF_A_KIND", 1)
    twin, caches = compiled(mistral, ENGINE), (empty(mistral), empty(mistral))
    text(twin, tokens(4, 1))
    made = programs(twin._compiled_call_impl)
    for count in (SIZE - 2, 1, 1):
        assert_same_call(twin, mistral, tokens(count, 1), caches)
    assert graphs() > 0 and programs(twin._compiled_call_impl) == made + 2


def test_a_layer_that_counts_otherwise(mistral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left to Dynamo: no program would count with it."""
    kind = type(empty(mistral).layers[0])
    plain = kind.update

    def update(self: Any, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain(self, keys, values, *args, **kwargs)
        self.cumulative_length += 1
        return found

    monkeypatch.setattr(kind, "update", update)
    monkeypatch.setattr(calls, "forwards", lambda *_, **__: [])
    twin, ids = compiled(mistral, ENGINE), tokens(5, 1)
    text(twin, ids, max_new_tokens=1)
    assert programs(twin._compiled_call_impl) == 0
