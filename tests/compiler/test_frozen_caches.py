"""Caches of a frozen model that do not only grow: static, with a window, cropped, of beams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiler.test_caches import assistant_of, build, cropped_rows
from compiler.test_direct import frozen, graphs, programs, text
from compiler.test_models import tokens
from fusewheel._core.cache_argument import cache_argument
from nightly import NIGHTLY
from transformers import DynamicCache

STATIC = {"cache_implementation": "static"}
# A model, what `generate` is told, whether prompts are padded, and the graphs that Dynamo makes: of
# static caches whose window is full.
TEXTS: dict[str, tuple[str, dict[str, Any], bool, int]] = {
    "static": ("Llama", STATIC, False, 0),
    "static, Qwen3": ("Qwen3", STATIC, False, 0),
    "static, padding": ("Llama", STATIC, True, 0),
    "static, beams": ("Llama", {**STATIC, "num_beams": 3}, False, 0),
    "static, window": ("Mistral", STATIC, False, 2),
    "static, windows in some layers": ("Gemma3Text", STATIC, False, 2),
    "window, padding": ("Mistral", {}, True, 0),
    "beams, padding": ("Llama", {"num_beams": 3}, True, 0),
    "looked up in the prompt": ("Llama", {"prompt_lookup_num_tokens": 3}, False, 0),
}


@NIGHTLY
@pytest.mark.parametrize(("name", "options", "padded", "most"), TEXTS.values(), ids=TEXTS)
def test_texts(name: str, options: dict[str, Any], padded: bool, most: int) -> None:
    original = build(name, num_hidden_layers=2)
    model = frozen(original)
    ids = tokens(9, 1 if "prompt_lookup_num_tokens" in options else 3)
    more = {**options, "max_new_tokens": 12}
    if padded:
        ids[0, :4] = ids[1, :1] = 0
        more["attention_mask"] = (ids != 0).long()
    assert torch.equal(text(model, ids, **more), text(original, ids, **more))
    assert graphs() <= most


def call(model: Any, ids: torch.Tensor, cache: Any) -> dict[str, Any]:
    return {"input_ids": ids, cache_argument(): cache, "use_cache": True}


def test_windows_that_can_be_cropped() -> None:
    """Assisted generation lets layers keep more than a window until `crop` is called."""
    original = build("Mistral", num_hidden_layers=2)
    model, drawn, start = frozen(original), tokens(40, 1), 0
    caches = [DynamicCache(config=model.config) for _ in range(2)]
    for cache in caches:
        cache.activate_past_recording()
    with torch.no_grad():
        for count, crop in ((9, -2), (5, -1), (4, -3), (1, 0), (3, -2), (3, None), (2, -1)):
            ids, start = drawn[:, start : start + count], start + count
            logits = [
                one(**call(one, ids, cache)).logits
                for one, cache in zip((model, original), caches, strict=True)
            ]
            torch.testing.assert_close(*logits)
            for cache in caches:
                if crop is not None:
                    cache.crop(crop)
            shapes = [[layer.keys.shape for layer in cache.layers] for cache in caches]
            assert shapes[0] == shapes[1]
    assert graphs() <= 1, "only what was not cropped is Dynamo's"


def test_logits_of_the_last_tokens() -> None:
    """It does not matter how many are asked for, if these are all tokens of a call."""
    original = build("Llama", num_hidden_layers=2)
    model, ids = frozen(original), tokens(3, 1)
    with torch.no_grad():
        for kept in (0, 3, 9, 1, 2):
            given = [
                {**call(one, ids, DynamicCache(config=one.config)), "logits_to_keep": kept}
                for one in (model, original)
            ]
            found, expected = model(**given[0]).logits, original(**given[1]).logits
            torch.testing.assert_close(found, expected)
    assert graphs() == 0 and len(programs(model)) == 3


def _reorder(cache: Any) -> None:
    cache.reorder_cache(torch.tensor([1, 1, 0]))


def _repeat(cache: Any) -> None:
    cache.batch_select_indices(torch.tensor([0, 0, 1]))


@pytest.mark.parametrize("change", [None, _reorder, _repeat])
def test_rows_that_others_wrote(change: Any) -> None:
    """A prompt that was read uncompiled, and rows in another order, as beam search leaves them."""
    original = build("Llama", num_hidden_layers=2)
    model, ids = frozen(original), tokens(6, 3)
    caches = [DynamicCache(config=model.config) for _ in range(2)]
    with torch.no_grad():
        for one, cache in zip((model if change else original, original), caches, strict=True):
            one(**call(one, ids, cache))
        for token in (ids[:, :1], ids[:, 1:2]):
            if change is not None:
                any(change(cache) for cache in caches)
            before = [layer.keys.clone() for layer in caches[0].layers]
            seen = [layer.keys for layer in caches[0].layers]
            found, expected = (
                one(**call(one, token, cache)).logits
                for one, cache in zip((model, original), caches, strict=True)
            )
            torch.testing.assert_close(found, expected)
            assert all(map(torch.equal, seen, before))
    assert graphs() == 0


def test_a_cropped_cache() -> None:
    """It goes on as if the rows had never been; the same two programs serve it."""
    original = build("Llama")
    model, drawn = frozen(original), tokens(24, 1)
    caches = [DynamicCache(config=model.config) for _ in range(2)]
    start = 0
    with torch.no_grad():
        for count, crop in ((9, None), (1, None), (1, -3), (1, None), (1, -2), (1, None), (1, -8)):
            ids, start = drawn[:, start : start + count], start + count
            logits = []
            for one, cache in zip((model, original), caches, strict=True):
                if crop is not None:
                    cache.crop(crop)
                logits.append(one(**call(one, ids, cache)).logits)
            torch.testing.assert_close(*logits)
    assert graphs() == 0
    assert len(programs(model)) == 3  # a cache of one row is a case of its own


@NIGHTLY
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_assisted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models are frozen. What the assistant guessed wrong is cropped from both caches."""
    original = build(name, num_hidden_layers=2)
    model, helper = frozen(original), frozen(assistant_of(original))
    cropped = cropped_rows(monkeypatch)
    for length in (9, 5):
        ids = tokens(length, 1)
        found = text(model, ids, assistant_model=helper, max_new_tokens=12)
        assert torch.equal(found, text(original, ids, max_new_tokens=12))
    assert 0 in cropped[:-1] and max(cropped) > 0
    assert programs(model) and programs(helper)
