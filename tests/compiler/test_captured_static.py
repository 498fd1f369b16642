"""Static caches of compiled models: programs of growing caches serve them, and nobody can tell."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiler.test_caches import build
from compiler.test_captured_generation import ENGINE, compiled, graphs, programs, text
from compiler.test_models import tokens
from fusewheel._core.cache_argument import cache_argument
from nightly import NIGHTLY
from transformers import StaticCache

STATIC = {"cache_implementation": "static"}
# A model, its settings, what `generate` is told beside, and whether prompts are padded.
TEXTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool]] = {
    "padding": ("Llama", {}, {}, True),
    "masks in a dictionary": ("Qwen3", {}, {}, False),
    "beams": ("Llama", {}, {"num_beams": 3}, False),
    "a window that is never full": ("Mistral", {"sliding_window": 14}, {}, True),
    "windows in some layers": ("Gemma3Text", {"sliding_window": 40}, {}, False),
    "learned positions": ("GPT2", {}, {}, False),
    "masks of numbers": ("Llama", {"attn_implementation": "eager"}, {}, False),
}


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("Llama", num_hidden_layers=2).double()


def static(model: Any, room: int = 20) -> StaticCache:
    return StaticCache(config=model.config, max_cache_len=room)


def call(model: Any, ids: torch.Tensor, cache: Any, **more: Any) -> Any:
    with torch.no_grad():
        return model(**{"input_ids": ids, cache_argument(): cache, "use_cache": True, **more})


def assert_same(found: Any, expected: Any, cache: Any, other: Any) -> None:
    """Logits, and everything that the caches hold."""
    torch.testing.assert_close(found.logits, expected.logits)
    assert found[cache_argument()] is cache
    for one, two in zip(cache.layers, other.layers, strict=True):
        assert vars(one).keys() == vars(two).keys()
        for name, value in vars(one).items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(value, vars(two)[name])
                assert value.stride() == vars(two)[name].stride()
            else:
                assert value == vars(two)[name], name


def pair(model: Any) -> tuple[Any, Any, Any]:
    """A compiled model that has captured, a static cache of its own and one for the other."""
    twin = compiled(model, ENGINE)
    text(twin, tokens(5, 1), **STATIC)
    assert programs(twin._compiled_call_impl) == 2
    return twin, static(model), static(model)


@pytest.mark.parametrize(
    ("name", "settings", "options", "padded"),
    [pytest.param(*case, marks=() if n < 2 else NIGHTLY) for n, case in enumerate(TEXTS.values())],
    ids=TEXTS,
)
def test_texts(name: str, settings: Any, options: Any, padded: bool) -> None:
    """The same as uncompiled, by the programs that serve a growing cache."""
    model = build(name, num_hidden_layers=2, **settings).double()
    twin, ids, more = compiled(model), tokens(7, 3), {**options, "max_new_tokens": 8}
    if padded:
        ids[0, :3] = ids[1, :1] = 0
    more["attention_mask"] = (ids != 0).long() if padded else torch.ones_like(ids)
    assert torch.equal(text(twin, ids, **more, **STATIC), text(model, ids, **more))
    before = programs(twin._compiled_call_impl)
    assert torch.equal(text(twin, ids, **more), text(model, ids, **more))
    assert graphs() == 0 and programs(twin._compiled_call_impl) == before


def test_the_cache_is_what_it_would_be(llama: Any) -> None:
    """After a prompt, tokens and several tokens at once; the last one fills it."""
    (twin, cache, other), drawn, start = pair(llama), tokens(20, 1), 0
    for count in (7, 1, 1, 3, 7, 1):
        ids, start = drawn[:, start : start + count], start + count
        assert_same(call(twin, ids, cache), call(llama, ids, other), cache, other)
    assert graphs() == 0
    with pytest.raises(IndexError):
        call(llama, drawn[:, :1], other)
    with pytest.raises(IndexError):
        call(twin, drawn[:, :1], cache)


def _crop(cache: Any) -> Any:
    cache.crop(-3)
    return cache


def _reset(cache: Any) -> Any:
    cache.reset()
    return cache


def _write(cache: Any) -> Any:
    cache.layers[1].values[:, :, 2] = 0.5
    return cache


def _replace(cache: Any) -> Any:
    cache.layers[0].keys = 2 * cache.layers[0].keys
    return cache


def _reorder(cache: Any) -> Any:
    cache.reorder_cache(torch.tensor([1, 1, 0]))
    return cache


CHANGES = {"cropped": _crop, "reset": _reset, "written": _write, "replaced": _replace}
CHANGES |= {"reordered": _reorder, "copied": copy.deepcopy}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_somebody_changes_the_cache(change: Callable[[Any], Any], llama: Any) -> None:
    """What others do to it counts in the next call."""
    (twin, cache, other), ids = pair(llama), tokens(6, 3)
    for part in (ids, ids[:, :1]):
        assert_same(call(twin, part, cache), call(llama, part, other), cache, other)
    cache, other = change(cache), change(other)
    for part in (ids[:, 1:2], ids[:, 2:3]):
        assert_same(call(twin, part, cache), call(llama, part, other), cache, other)
    assert graphs() == 0


def test_a_copy_and_the_original_go_on(llama: Any) -> None:
    (twin, cache, _), ids = pair(llama), tokens(6, 1)
    call(twin, ids, cache)
    for one in (copy.deepcopy(cache), cache):
        other = static(llama)
        call(llama, ids, other)
        for token in (ids[:, :1], ids[:, 1:2]):
            assert_same(call(twin, token, one), call(llama, token, other), one, other)


def test_a_cache_that_was_filled_uncompiled(llama: Any) -> None:
    (twin, cache, other), ids = pair(llama), tokens(6, 1)
    call(llama, ids, cache), call(llama, ids, other)
    for token in (ids[:, :1], ids[:, 1:2]):
        assert_same(call(twin, token, cache), call(llama, token, other), cache, other)
    assert graphs() == 0


def mask_of(ids: torch.Tensor, room: int = 20) -> torch.Tensor:
    return torch.ones(ids.shape[1], room, dtype=torch.bool).tril()[None, None]


def _of_a_block(mask: torch.Tensor) -> torch.Tensor:
    mask[..., 2:4, 2:4] = True
    return mask


def _of_a_pair(mask: torch.Tensor) -> torch.Tensor:
    mask[..., 4, 1] = False
    return mask


def _of_what_is_not_there(mask: torch.Tensor) -> torch.Tensor:
    mask[..., 9] = True
    return mask


def _of_numbers(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, float("-inf"))


MASKS = [_of_a_block, _of_a_pair, _of_what_is_not_there, _of_numbers]


@pytest.mark.parametrize("change", [MASKS[0], *(pytest.param(m, marks=NIGHTLY) for m in MASKS[1:])])
def test_masks_of_ones_own(change: Callable[[torch.Tensor], torch.Tensor], llama: Any) -> None:
    """They are Dynamo's: a program knows padding only."""
    (twin, cache, other), ids = pair(llama), tokens(6, 1)
    mask, before = change(mask_of(ids)), programs(twin._compiled_call_impl)
    found = call(twin, ids, cache, attention_mask=mask)
    assert_same(found, call(llama, ids, other, attention_mask=mask), cache, other)
    assert graphs() > 0 and programs(twin._compiled_call_impl) == before


def test_a_mask_that_is_causal(llama: Any) -> None:
    (twin, cache, other), ids = pair(llama), tokens(6, 1)
    found = call(twin, ids, cache, attention_mask=mask_of(ids))
    assert_same(found, call(llama, ids, other, attention_mask=mask_of(ids)), cache, other)
    # A token may be told not to see any one before.
    mask = torch.zeros(1, 1, 1, 20, dtype=torch.bool)
    mask[..., 1:7:2] = mask[..., 6] = True
    found = call(twin, ids[:, :1], cache, attention_mask=mask)
    expected = call(llama, ids[:, :1], other, attention_mask=mask)
    assert_same(found, expected, cache, other)
    assert graphs() == 0


def test_a_cache_of_another_dtype(llama: Any) -> None:
    """It is an error as uncompiled, and not a cache with rounded rows."""
    twin, cache, other = pair(llama)
    for one in (cache, other):
        one.early_initialization(1, 2, 16, torch.float32, torch.device("cpu"))
    for model, one in ((llama, other), (twin, cache)):
        with pytest.raises(RuntimeError, match="same dtype"):
            call(model, tokens(6, 1), one)


def test_ever_longer_caches_are_no_change(llama: Any) -> None:
    """`generate` notes the length on the model."""
    twin, ids = compiled(llama), tokens(5, 1)
    for count in range(3, 15):
        text(twin, ids, max_new_tokens=count, **STATIC)
    assert graphs() == 0 and programs(twin._compiled_call_impl) == 2


@NIGHTLY
def test_padding_that_sees_everything() -> None:
    """With masks of numbers attention of padding depends on the length of the cache."""
    model = build("Llama", attn_implementation="eager").double()
    twin, ids = compiled(model), tokens(7, 2)
    ids[0, :3] = 0
    more = {"attention_mask": (ids != 0).long(), **STATIC}
    assert torch.equal(text(twin, ids, **more), text(model, ids, **more))
    assert graphs() == 1 and programs(twin._compiled_call_impl) == 1


@NIGHTLY
def test_a_window_that_becomes_full() -> None:
    """From there on it is Dynamo's."""
    model = build("Mistral", num_hidden_layers=2).double()
    twin, ids = compiled(model), tokens(7, 2)
    found = text(twin, ids, max_new_tokens=14, **STATIC)
    assert torch.equal(found, text(model, ids, max_new_tokens=14))
    assert graphs() > 0 and programs(twin._compiled_call_impl) > 0


def test_inference_mode(llama: Any) -> None:
    """Its tensors have no versions, so that nobody could see who wrote."""
    twin, ids = compiled(llama), tokens(5, 1)
    with torch.inference_mode():
        found = text(twin, ids, **STATIC)
    assert torch.equal(found, text(llama, ids))
