"""A cache of keys and values in int8: the model computes what it does with rounded keys."""

from __future__ import annotations

from typing import Any

import fusewheel
import pytest
import torch
from fusewheel._core.cache_argument import cache_argument
from tiny_gguf import small_llama
from torch import Tensor

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model() -> Any:
    fusewheel.transformers.register()
    # One layer, whose keys do not depend on attention: no other rounding turns a code into its
    # neighbour.
    found = small_llama(layers=1).eval()
    found.set_attn_implementation("fusewheel")
    found.generation_config.eos_token_id = None
    return found


class Rounded(transformers.cache_utils.DynamicLayer):
    """The same numbers as floats."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        first = self.get_seq_length() == 0
        found = super().update(rounded(key_states), rounded(value_states))
        return (key_states, value_states) if first else found


def rounded(x: Tensor) -> Tensor:
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-30)
    return (x / scale).round() * scale


def logits(model: Any, ids: Tensor, cache: Any) -> list[Tensor]:
    """Of a prompt, of two tokens one by one, and of several at once."""
    with torch.no_grad():
        pieces = ids.split([7, 1, 1, 5], 1)
        return [model(piece, **{cache_argument(): cache}).logits for piece in pieces]


def test_it_computes_with_rounded_keys_and_values(model: Any) -> None:
    ids = torch.randint(97, (2, 14))
    expected = logits(model, ids, transformers.Cache(layer_class_to_replicate=Rounded))
    cache = fusewheel.transformers.int8_cache(model.config)
    torch.testing.assert_close(logits(model, ids, cache), expected)
    assert cache.get_seq_length() == 14
    assert {rows.codes.dtype for layer in cache.layers for rows in layer.rows} == {torch.int8}
    exact = logits(model, ids, transformers.DynamicCache())
    assert torch.equal(exact[0], expected[0]) and not torch.equal(exact[1], expected[1])


def test_it_grows_and_is_cut(model: Any) -> None:
    ids = torch.randint(97, (1, 300)) % 97
    cache = fusewheel.transformers.int8_cache(model.config)
    with torch.no_grad():
        model(ids[:, :4], **{cache_argument(): cache})
        for start in range(4, 64, 20):
            model(ids[:, start : start + 20], **{cache_argument(): cache})
        cache.crop(-24)
        got = model(ids[:, 40:41], **{cache_argument(): cache}).logits
        again = fusewheel.transformers.int8_cache(model.config)
        model(ids[:, :4], **{cache_argument(): again})
        for start in range(4, 40, 20):
            model(ids[:, start : min(start + 20, 40)], **{cache_argument(): again})
        torch.testing.assert_close(got, model(ids[:, 40:41], **{cache_argument(): again}).logits)


def test_generation_and_beams(model: Any) -> None:
    ids = torch.randint(97, (1, 6))
    for beams in (1, 2):
        options = {"max_new_tokens": 8, "do_sample": False, "num_beams": beams}
        cache = fusewheel.transformers.int8_cache(model.config)
        other = transformers.Cache(layer_class_to_replicate=Rounded)
        got = model.generate(ids, **{cache_argument(): cache}, **options)
        assert torch.equal(got, model.generate(ids, **{cache_argument(): other}, **options))


def test_what_is_refused(model: Any) -> None:
    config = transformers.MistralConfig(sliding_window=8)
    with pytest.raises(ValueError, match="int8_cache: all layers of the model must attend to all"):
        fusewheel.transformers.int8_cache(config)
    ids, mask = torch.ones(2, 3, dtype=torch.long), torch.tensor([[0, 1, 1], [1, 1, 1]])
    cache = fusewheel.transformers.int8_cache(model.config)
    with torch.no_grad(), pytest.raises(ValueError, match="no padding, bias or dropout"):
        model.generate(ids, attention_mask=mask, **{cache_argument(): cache}, max_new_tokens=3)


def test_zeros_stay_zeros() -> None:
    layer = fusewheel.transformers.int8_cache(transformers.LlamaConfig()).layer_class_to_replicate()
    zeros = torch.zeros(1, 1, 2, 8)
    layer.update(zeros, zeros)
    key, _ = layer.update(zeros, zeros)
    assert not key.any() and not key._fusewheel_scales.any()
