"""Models that generate text with the backend: their tokens, their caches, and how many graphs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import fusewheel
import pytest
import torch
from compiler.test_models import SIZES, tokens
from fusewheel._core.cache_argument import cache_argument
from fusewheel.engine.growing import append
from nightly import NIGHTLY
from oracle import assert_program_as_good_as_eager
from torch._dynamo.utils import counters

transformers = pytest.importorskip("transformers")

OPTIONS = {"do_sample": False, "eos_token_id": None, "disable_compile": True}
WINDOW = {"sliding_window": 12}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
# Settings, and the number of graphs for one prompt. A window makes more: transformers builds other
# masks before it is full, while it becomes full and afterwards.
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "Llama": ("LlamaForCausalLM", {}, 2),
    "Mistral": ("MistralForCausalLM", WINDOW, 5),
    "Gemma3Text": ("Gemma3ForCausalLM", WINDOW, 5),
    "GPT2": ("GPT2LMHeadModel", {}, 2),
    "Qwen3": ("Qwen3ForCausalLM", {}, 2),
    "Olmo2": ("Olmo2ForCausalLM", {}, 2),
    "Phi3": ("Phi3ForCausalLM", {}, 2),
    "Mixtral": ("MixtralForCausalLM", EXPERTS, 2),
}


def build(name: str, **settings: Any) -> Any:
    """A small random model of one layer whose tokens depend on what it has read."""
    torch.manual_seed(0)
    architecture, own, _ = MODELS[name]
    sizes = {**SIZES, "num_hidden_layers": 1, "initializer_range": 0.3, **own, **settings}
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, architecture)(config).eval()


def compiled(model: Any) -> Any:
    twin = copy.deepcopy(model)
    twin.compile(backend="fusewheel", options={"inner": "none"})
    counters.clear()
    return twin


@pytest.fixture(autouse=True)
def by_dynamo() -> Iterator[None]:
    """These graphs are Dynamo's; those of `test_captured_generation.py` are not."""
    with fusewheel.compiler.disable("capture"):
        yield


@pytest.fixture
def llama() -> Any:
    return build("Llama")


def assert_same_text(model: Any, ids: torch.Tensor, **options: Any) -> Any:
    """Compiled and uncompiled it writes the same; returns the compiled one."""
    twin = compiled(model)
    arguments = {"max_new_tokens": 6, **OPTIONS, **options}
    assert torch.equal(twin.generate(ids, **arguments), model.generate(ids, **arguments))
    return twin


@NIGHTLY
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    model = build(name)
    assert_same_text(model, tokens(9, 1), max_new_tokens=15)
    graphs = MODELS[name][2]
    assert counters["stats"]["unique_graphs"] <= graphs
    # Keys and values, in each graph.
    assert counters["fusewheel"]["append"] == 2 * counters["stats"]["unique_graphs"]


@NIGHTLY
@pytest.mark.parametrize("name", MODELS)
def test_long_texts(name: str) -> None:
    model = build(name, num_hidden_layers=2)
    for length in (9, 30):
        assert_same_text(model, tokens(length), max_new_tokens=90)


def test_a_second_prompt_takes_one_more_graph(llama: Any) -> None:
    """The text is the same, and a cache grows in each graph: its keys and its values."""
    twin = compiled(llama)
    for length, graphs in ((9, 2), (11, 3), (14, 3)):
        ids = tokens(length, 1)
        expected = llama.generate(ids, max_new_tokens=4, **OPTIONS)
        assert torch.equal(twin.generate(ids, max_new_tokens=4, **OPTIONS), expected)
        assert counters["stats"]["unique_graphs"] == graphs
        assert counters["fusewheel"]["append"] == 2 * graphs


WAYS = {
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "static": {"cache_implementation": "static"},
}


# A change steps through a static cache in tests/compiler/test_executor_models.py.
@pytest.mark.parametrize(
    "options", [WAYS["beams"], pytest.param(WAYS["static"], marks=NIGHTLY)], ids=WAYS
)
def test_ways_to_generate(llama: Any, options: dict[str, Any]) -> None:
    assert_same_text(llama, tokens(5, 1), **options)


@NIGHTLY
def test_one_prompt_twice(llama: Any) -> None:
    """Each sequence of a batch has rows of its own, also if the new ones share memory."""
    assert_same_text(llama, tokens(5, 1).expand(2, -1))


@NIGHTLY
def test_padding(llama: Any) -> None:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    assert_same_text(llama, tokens(7), attention_mask=mask)


def assistant_of(model: Any) -> Any:
    """A model that guesses some of its tokens."""
    torch.manual_seed(0)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for weight in twin.parameters():
            weight += 0.02 * torch.randn_like(weight)
    return twin


def cropped_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows that each `crop` takes from a cache, from now on."""
    rows: list[int] = []
    crop = transformers.DynamicCache.crop

    def counted(cache: Any, number: int) -> None:
        before = cache.get_seq_length()
        crop(cache, number)
        rows.append(before - cache.get_seq_length())

    monkeypatch.setattr(transformers.DynamicCache, "crop", counted)
    return rows


@NIGHTLY
def test_assisted(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is cropped where the assistant guessed wrong, and goes on growing in place."""
    ids = tokens(5, 1)
    expected = llama.generate(ids, max_new_tokens=12, **OPTIONS)
    cropped = cropped_rows(monkeypatch)
    twin, helper = compiled(llama), compiled(assistant_of(llama))
    found = twin.generate(ids, assistant_model=helper, max_new_tokens=12, **OPTIONS)
    assert torch.equal(found, expected)
    assert 0 in cropped[:-1] and max(cropped) > 0
    # Keys and values, in each graph of both.
    assert counters["fusewheel"]["append"] == 2 * counters["stats"]["unique_graphs"]


def _logits(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(ids, **{cache_argument(): cache}).logits
    return found


def _continued(model: Any, write: bool = False) -> list[torch.Tensor]:
    """The logits of two texts that continue one prefix, step by step in turn, and of one that was
    cropped; a cache's keys and the other one's values.
    """
    prefix, one, two = tokens(6, 1), tokens(4, 1), tokens(4, 1)
    cache = transformers.DynamicCache(config=model.config)
    found = [_logits(model, prefix, cache)]
    other = copy.copy(cache)
    other.layers = [copy.copy(layer) for layer in cache.layers]  # the same tensors
    seen = cache.layers[0].keys
    before = seen.clone()
    for i in range(4):
        found += [
            _logits(model, one[:, i : i + 1], cache),
            _logits(model, two[:, i : i + 1], other),
        ]
    assert torch.equal(seen, before)
    if write:
        seen.zero_()
        cache.layers[0].keys.mul_(0.5)
    cache.crop(-3)
    found += [_logits(model, two[:, 1:2], cache), _logits(model, two[:, 1:2], other)]
    together = torch.cat([logits.flatten() for logits in found])
    return [together, cache.layers[0].keys, other.layers[0].values]


def test_two_continuations_of_one_prefix(llama: Any) -> None:
    models = compiled(llama), llama, copy.deepcopy(llama).double()
    for write in (False, True):
        results = []
        for model in models:
            torch.manual_seed(1)
            results.append(_continued(model, write))
        for own, eager, exact in zip(*results, strict=True):
            assert_program_as_good_as_eager(own, eager, exact)
    assert counters["fusewheel"]["append"] > 0


def _grow(past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return torch.cat([past, new], dim=-2)


def _written(past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    keys = torch.cat([past, new], dim=-2)
    keys[:, :, 0] = 0
    return keys


def _input_written(past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    keys = torch.cat([past, new], dim=-2)
    past.zero_()
    return keys


def _copied(past: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.cat([past, new], dim=-2)
    return keys, keys.transpose(1, 2).contiguous().mul_(2)


def _shared(past: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.cat([past, new], dim=-2)
    return keys, keys.transpose(1, 2).reshape(1, -1, 8)[:, 1:]


def _flat(past: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.cat([past, new], dim=-2)
    return keys, keys.view(-1)


def _kept(past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return torch.cat([past, new], dim=-2).sum(-1)


def _middle(past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return torch.cat([past * 2, new], dim=-2)


def _other_dtype(past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return torch.cat([past, new.double()], dim=-2)


REASONS = {
    _written: "the graph may write in place to the cache",
    _input_written: "the graph may write in place to the cache",
    # In the order of memory of a growing cache these copies would be views of it.
    _copied: "contiguous would copy where it shares memory, or the reverse",
    _shared: "an output would share memory where it is a copy, or the reverse",
    _flat: "view depends on the layout of the result",
    _other_dtype: "the new rows have another dtype",
    _kept: None,  # it is no cache: nobody gets it
    _middle: None,  # its first rows are new each time
}


@pytest.mark.parametrize("function", REASONS, ids=lambda f: f.__name__)
def test_what_stays(function: Any) -> None:
    past, new = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 1, 4)
    report = fusewheel.explain(function, past.clone(), new)
    reasons = [refusal.reason for refusal in report.refusals if refusal.pattern == "append"]
    assert reasons == ([REASONS[function]] if REASONS[function] else [])
    assert report.count("append") == 0
    call = torch.compile(function, backend="fusewheel", options={"inner": "none"})
    torch.testing.assert_close(call(past.clone(), new), function(past.clone(), new))


def test_report() -> None:
    past, new = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 1, 4)
    report = fusewheel.explain(_grow, past, new)
    (found,) = [r for r in report.replacements if r.pattern == "append"]
    assert found.bytes_saved == 2 * past.numel() * 4
    assert "torch.cat([past, new], dim=-2)" in found.code
    with fusewheel.compiler.disable("append"):
        report = fusewheel.explain(_grow, past, new)
        assert report.count("append") == 0
        assert "disabled" in report.refusals[0].reason


def test_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusewheel.engine.growing, "step_letters", lambda operator: None)
    report = fusewheel.explain(_grow, torch.randn(1, 2, 5, 4), torch.randn(1, 2, 1, 4))
    assert report.count("append") == 0
    assert "no CPU kernels are loaded" in report.refusals[0].reason


def test_gradients_are_recorded() -> None:
    """Where a gradient may be needed the rows are copied."""
    past, new = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 1, 4, requires_grad=True)
    call = torch.compile(_grow, backend="fusewheel", options={"inner": "none"})
    call(past, new).sum().backward()
    assert torch.equal(new.grad, torch.ones_like(new))
    assert fusewheel.explain(_grow, past, new).count("append") == 0


@pytest.mark.parametrize("inner", ["aot_eager", "eager"])
def test_other_inner_compilers_copy(inner: str) -> None:
    past, new = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 1, 4)
    call = torch.compile(_grow, backend="fusewheel", options={"inner": inner})
    counters.clear()
    assert torch.equal(call(past, new), _grow(past, new))
    assert counters["fusewheel"]["append"] == 0


def test_a_graph_serves_every_length() -> None:
    call = torch.compile(_grow, backend="fusewheel", options={"inner": "none"})
    counters.clear()
    keys, expected = append(torch.tensor([]), torch.randn(1, 2, 5, 4)), None
    for _ in range(150):  # several rooms
        new = torch.randn(1, 2, 1, 4)
        expected = _grow(keys if expected is None else expected, new)
        keys = call(keys, new)
    assert torch.equal(keys, expected)
    # The first input came from elsewhere; every later one came out of a graph.
    assert counters["stats"]["unique_graphs"] == 2
