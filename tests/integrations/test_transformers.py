"""Models of transformers with `attn_implementation="fusewheel"` beside "eager", in float64 too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel._core.cache_argument import cache_argument
from fusewheel.transformers._packed import restarts
from integrations.tiny_models import (
    MODELS,
    SIZES,
    VOCABULARY,
    WINDOW,
    assert_steps,
    assert_steps_of,
    build,
    padded,
    prepared,
    register_exact,
    step,
    three,
    tokens,
    with_attention,
)
from oracle import assert_program_as_good_as_eager
from torch import Tensor

transformers = pytest.importorskip("transformers")
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    fusewheel.transformers.register()
    register_exact()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str, dtype: torch.dtype) -> None:
    assert_steps(build(name, dtype), input_ids=tokens(4, 17))


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_padding(name: str, left: bool) -> None:
    ids, mask = padded([17, 9, 4], left)
    assert_steps(build(name), mask.bool(), input_ids=ids, attention_mask=mask)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", MODELS)
def test_generate_with_padding(name: str, cache: str) -> None:
    ids, mask = padded([11, 3, 7], left=True)
    options = {
        **{"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache},
        **{"output_logits": True, "return_dict_in_generate": True},
    }
    made = [m.generate(input_ids=ids, attention_mask=mask, **options) for m in three(build(name))]
    assert all(torch.equal(made[0].sequences, other.sequences) for other in made[1:])
    # Of each step, as long as all of them write.
    assert_program_as_good_as_eager(*(torch.stack(m.logits[:4]) for m in made))


@pytest.mark.parametrize("cache", ["DynamicCache", "StaticCache"])
@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_in_two_parts(name: str, cache: str) -> None:
    """More keys than queries, and more than one query; also with keys that are not written yet."""
    ids = tokens(2, 15)
    options = {"max_cache_len": 24} if cache == "StaticCache" else {}

    def second_part(model: Any) -> Tensor:
        past = getattr(transformers, cache)(config=model.config, **options)
        with torch.no_grad():
            parts = [
                model(input_ids=part, **{cache_argument(): past}).logits
                for part in ids.split((8, 7), 1)
            ]
        return torch.cat(parts, 1)

    assert_program_as_good_as_eager(*map(second_part, three(build(name))))


def packed(lengths: list[int]) -> dict[str, Any]:
    """One row of packed sequences, as `DataCollatorWithFlattening` makes it."""
    features = [{"input_ids": tokens(length).tolist()} for length in lengths]
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    given: dict[str, Any] = collator(features)
    given.pop("labels")
    return given


# By what the sequences are told apart: where they begin, or restarting positions.
WAYS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "lengths": lambda given: given,
    "lengths, no mask": lambda given: given | {"attention_mask": torch.ones(1, sum(LENGTHS))},
    "positions": lambda given: {k: given[k] for k in ("input_ids", "position_ids")},
    "positions, with a cache": lambda given: WAYS["positions"](given) | {"use_cache": True},
}
LENGTHS = [9, 1, 7, 12]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_packed_is_padded(name: str, way: str) -> None:
    model = build(name)
    given = packed(LENGTHS)
    ids, mask = padded(LENGTHS, left=False)
    ids[mask.bool()] = given["input_ids"][0]
    rows = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    ours, *others = three(model)
    got = step(ours, 0, **{"use_cache": False} | WAYS[way](given))
    assert_steps_of((got, *(step(m, mask.bool(), **rows) for m in others)))


def test_which_positions_tell_packed_sequences() -> None:
    cases: dict[tuple[int, ...], list[int] | None] = {
        (0, 1, 2, 0, 1, 0): [0, 3, 5, 6],
        (2, 3, 2, 3, 4): [0, 2, 5],
        (0, 1, 2, 3): None,
        (0, 0, 0): None,  # of a model without positions
        (0, 1, 2, 8, 9, 0, 1): None,  # of patches in a picture
        (3, 4, 0, 1, 0): None,
        (0, 1, 1, 0, 1): None,
        (0,): None,
    }
    for positions, expected in cases.items():
        query = torch.empty(1, 2, len(positions), 4)
        found = restarts(torch.tensor([positions]), query)
        assert (found if found is None else found.tolist()) == expected, positions
    two_rows = torch.tensor([[0, 1, 0], [0, 1, 0]])
    assert restarts(two_rows, torch.empty(2, 2, 3, 4)) is None


def test_other_kinds_of_layers() -> None:
    """Chunks, which only the mask knows."""
    settings = {
        "attention_chunk_size": 4,
        "num_local_experts": 2,
        "intermediate_size_mlp": 48,
        "head_dim": 8,
    }
    config = transformers.Llama4TextConfig(**SIZES | settings)
    torch.manual_seed(0)
    model = prepared(transformers.Llama4ForCausalLM(config))
    ids, mask = padded([17, 9], left=True)
    assert_steps(model, mask.bool(), input_ids=ids, attention_mask=mask)


def test_encoder_and_cross_attention() -> None:
    """Not causal, with padding; a learned bias of positions; a decoder that reads the encoder."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    )
    torch.manual_seed(0)
    model = prepared(transformers.T5ForConditionalGeneration(config))
    ids, mask = padded([13, 6], left=False)
    decoder_ids, decoder_mask = padded([7, 5], left=False)
    assert_steps(
        model,
        decoder_mask.bool(),
        input_ids=ids,
        attention_mask=mask,
        decoder_input_ids=decoder_ids,
        decoder_attention_mask=decoder_mask,
    )


def test_a_mask_of_the_users_own() -> None:
    """It is the whole pattern: nothing is causal beside it."""
    seen = tokens(2, 1, 9, 9) < VOCABULARY // 2
    seen |= torch.eye(9, dtype=torch.bool)
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    ours, eager, exact = three(build("Llama"))
    others = [
        step(m, slice(None), input_ids=tokens(2, 9), attention_mask=mask)
        for m, mask in ((eager, added), (exact, seen))
    ]
    for mask in (seen, added):
        got = step(ours, slice(None), input_ids=tokens(2, 9), attention_mask=mask)
        assert_steps_of((got, *others))


def test_dropout_in_training() -> None:
    model = with_attention(build("GptOss", attention_dropout=0.5))
    ids = tokens(2, 9)
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
        model.train()
        assert not torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)


def test_dropout_in_packed_sequences() -> None:
    """Each sequence has the result that it has alone, with the same random numbers."""
    forward = transformers.AttentionInterface()["fusewheel"]
    q, k, v = (torch.randn(1, heads, 9, 8) for heads in (4, 2, 2))
    starts = torch.tensor([0, 9], dtype=torch.int32)
    layer, options = torch.nn.Identity(), {"dropout": 0.5, "sliding_window": None}
    torch.manual_seed(2)
    got, _ = forward(layer, q, k, v, None, cu_seq_lens_q=starts, cu_seq_lens_k=starts, **options)
    torch.manual_seed(2)
    assert torch.equal(got, forward(layer, q, k, v, None, **options)[0])
    torch.manual_seed(3)
    assert not torch.equal(got, forward(layer, q, k, v, None, **options)[0])


def masks_of(name: str, mask: Tensor | None, **settings: Any) -> list[Tensor | None]:
    """What each layer is given as its mask."""
    found: list[Tensor | None] = []
    model = with_attention(build(name, **settings))
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, kwargs: found.append(kwargs["attention_mask"]), with_kwargs=True
        )
    with torch.no_grad():
        model(input_ids=tokens(2, 17), attention_mask=mask)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_no_mask_of_all_pairs_is_made(name: str) -> None:
    """Memory is linear in the length, with a window and with padding too."""
    assert masks_of(name, None) == [None, None]
    assert masks_of(name, torch.ones(2, 17)) == [None, None]
    mask = torch.ones(2, 17)
    mask[1, :3] = 0
    for given in masks_of(name, mask):
        assert torch.equal(given, mask.bool())


def test_a_window_that_layers_do_not_pass_on_is_an_error() -> None:
    """Qwen2Moe tells its window to its masks only."""
    settings = {
        **{"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 0},
        **{"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
    }
    model = with_attention(build("Qwen2Moe", **settings))
    model(input_ids=tokens(1, WINDOW))
    with pytest.raises(ValueError, match="does not know the window of Qwen2MoeAttention"):
        model(input_ids=tokens(1, WINDOW + 1))


def test_what_is_not_supported_is_an_error() -> None:
    layer = torch.nn.Identity()
    q = torch.randn(1, 2, 3, 4)
    forward = transformers.AttentionInterface()["fusewheel"]
    for given, message in (
        ({"output_attentions": True}, "does not return attention weights"),
        ({"cache": object()}, "does not support continuous batching"),
        (
            {"cu_seq_lens_q": torch.tensor([0, 3]), "cu_seq_lens_k": torch.tensor([0, 3])}
            | {"position_bias": torch.zeros(1, 2, 3, 3)},
            "does not support a position bias with packed sequences",
        ),
    ):
        with pytest.raises(ValueError, match=f'^attn_implementation="fusewheel" {message}'):
            forward(layer, q, q, q, None, **given)


def test_without_transformers_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ImportError, match="needs the package transformers, version 5 or newer: pip"
    ):
        fusewheel.transformers.register()
