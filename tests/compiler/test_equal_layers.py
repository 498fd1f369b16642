"""A frozen language model is compiled in less time: of its equal layers one is traced."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from typing import Any

import fusewheel
import pytest
import torch
from compiler.test_caches import OPTIONS, build
from compiler.test_models import tokens
from fusewheel._core.cache_argument import cache_argument
from fusewheel._torch.dynamo import repeated
from fusewheel._torch.modules import has_hooks
from fusewheel.compiler.entry.direct import repeated_layers
from fusewheel.compiler.entry.direct.calls import DirectCalls
from fusewheel.compiler.entry.direct.equal_layers import EqualLayers, computed
from fusewheel.compiler.entry.direct.unchanged import Unchanged
from fusewheel.compiler.ir import equal_calls
from nightly import NIGHTLY
from torch._dynamo.utils import counters
from transformers import DynamicCache

LAYERS = 4


@pytest.fixture
def by_dynamo(monkeypatch: Any) -> None:
    """Every call is traced by Dynamo."""
    monkeypatch.setattr(DirectCalls, "program", lambda *_: None)


traced = pytest.mark.usefixtures("by_dynamo")


def captured(model: Any, *, freeze: bool) -> tuple[torch.Tensor, int, int]:
    """The text of a compiled copy, its graphs, and the operations that Dynamo traced for them."""
    twin, ids = copy.deepcopy(model), torch.arange(3, 12)[None]
    if freeze:
        fusewheel.freeze(twin, options={"inner": "none"})
    else:
        twin.compile(backend="fusewheel", options={"inner": "none"})
    torch.compiler.reset()
    counters.clear()
    text = twin.generate(ids, max_new_tokens=6, **OPTIONS)
    assert counters["fusewheel"]["append"] == 2 * LAYERS * counters["stats"]["unique_graphs"]
    return text, counters["stats"]["unique_graphs"], counters["stats"]["calls_captured"]


@functools.cache
def all_calls(name: str) -> int:
    """How many operations Dynamo traces for the text of a model whose layers are all traced."""
    _, graphs, calls = captured(build(name, num_hidden_layers=LAYERS), freeze=False)
    assert graphs == 2
    return calls


MORE = [pytest.param(name, marks=NIGHTLY) for name in ("Qwen3", "Olmo2", "Phi3")]


@traced
@pytest.mark.parametrize("name", ["Llama", *MORE])
def test_one_layer_is_traced(name: str) -> None:
    model = build(name, num_hidden_layers=LAYERS)
    text, graphs, calls = captured(model, freeze=True)
    assert torch.equal(text, model.generate(torch.arange(3, 12)[None], max_new_tokens=6, **OPTIONS))
    assert graphs == 2
    assert calls < all_calls(name) / 2


@traced
def test_layers_that_differ_are_traced_again() -> None:
    """Here in a number that the second layer has for itself."""
    model = build("Llama", num_hidden_layers=LAYERS)
    model.model.layers[1].self_attn.scaling = 1.0
    model.model.layers[2].input_layernorm.variance_epsilon = 0.5
    text, _, _ = captured(model, freeze=True)
    assert torch.equal(text, model.generate(torch.arange(3, 12)[None], max_new_tokens=6, **OPTIONS))


def _own_activation(layer: Any) -> None:
    layer.mlp.act_fn = torch.nn.ReLU()


def _own_forward(layer: Any) -> None:
    layer.mlp.forward = lambda x: layer.mlp.down_proj(layer.mlp.up_proj(x))


@traced
@pytest.mark.parametrize("change", [_own_activation, _own_forward])
def test_a_layer_that_computes_something_else(change: Any) -> None:
    model = build("Llama", num_hidden_layers=2)
    change(model.model.layers[1])
    twin, ids = fusewheel.freeze(copy.deepcopy(model), options={"inner": "none"}), tokens(5, 1)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(twin(ids).logits, model(ids).logits)


def _scaled(mlp: Any, factor: float, x: torch.Tensor) -> torch.Tensor:
    return mlp.down_proj(mlp.up_proj(x)) * factor


@pytest.mark.parametrize("way", ["captured", "by Dynamo"])
def test_a_forward_that_is_replaced_after_freezing(way: str, monkeypatch: Any) -> None:
    if way == "by Dynamo":
        monkeypatch.setattr(DirectCalls, "program", lambda *_: None)
    model = build("Llama", num_hidden_layers=3)
    twin, ids = fusewheel.freeze(copy.deepcopy(model), options={"inner": "none"}), tokens(5, 1)
    for changed in (model, twin):
        for layer, factor in zip(changed.model.layers, (2.0, 3.0, 4.0), strict=True):
            layer.mlp.forward = functools.partial(_scaled, layer.mlp, factor)
    text, expected = (m.generate(ids, max_new_tokens=4, **OPTIONS) for m in (twin, model))
    assert torch.equal(text, expected)


class Scaled(torch.nn.Module):
    """Stands for a layer with a number."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale


def test_a_number_that_differs_between_layers() -> None:
    """Dynamo would make an input of it, which is none of the call that it repeats."""
    scaled = repeated(lambda layer, x: x * layer.scale)
    x = torch.randn(3)
    torch.compiler.reset()

    @torch.compile(backend="eager", fullgraph=True)
    def twice(one: Any, other: Any, x: torch.Tensor) -> torch.Tensor:
        return scaled(other, scaled(one, x))

    with torch.no_grad(), EqualLayers(build("Llama", num_hidden_layers=2)).traced_once():
        for scale in (0.5, 2.0, 3.0):
            assert torch.equal(twice(Scaled(scale), Scaled(scale), x), x * scale * scale)


@NIGHTLY
@traced
def test_a_number_that_differs_between_models() -> None:
    ids = tokens(5, 1)
    torch.compiler.reset()
    for epsilon in (1e-6, 1e-2):
        model = build("Llama", num_hidden_layers=2, rms_norm_eps=epsilon)
        with torch.no_grad():
            expected = model(ids, use_cache=True).logits
            fusewheel.freeze(model, options={"inner": "none"})
            torch.testing.assert_close(model(ids, use_cache=True).logits, expected)


@NIGHTLY
@traced
def test_a_graph_without_all_parameters() -> None:
    """As if torch had taken the weights of one layer for all: every layer is traced."""
    model = build("Llama", num_hidden_layers=LAYERS)
    for layer in model.model.layers:
        layer.unused = torch.nn.ParameterList(torch.zeros(1) for _ in range(20))
    text, graphs, calls = captured(model, freeze=True)
    assert torch.equal(text, model.generate(torch.arange(3, 12)[None], max_new_tokens=6, **OPTIONS))
    assert graphs <= 3 and calls >= all_calls("Llama")


def test_forwards_are_put_back() -> None:
    model = build("Llama", num_hidden_layers=LAYERS)
    mine = model.model.layers[1].forward
    model.model.layers[1].forward = lambda *args, **given: mine(*args, **given)
    fusewheel.freeze(model, options={"inner": "none"})
    model(tokens(5))
    assert ["forward" in vars(layer) for layer in model.model.layers] == [False, True, False, False]


def runs(
    monkeypatch: pytest.MonkeyPatch, model: Any, length: int = 9, *, freeze: bool = True
) -> list[int]:
    """The numbers of the layers that ran while a frozen or compiled model was captured, in order.

    Its text must be that of the model itself.
    """
    ran: list[int] = []

    def noting(layer: Any, *given: Any) -> Any:
        ran.append(layer.self_attn.layer_idx)
        return computed(layer, *given)

    monkeypatch.setattr(repeated_layers, "computed", noting)
    ids = torch.arange(3, 3 + length)[None]
    expected = model.generate(ids, max_new_tokens=6, **OPTIONS)
    twin = copy.deepcopy(model)
    if freeze:
        fusewheel.freeze(twin, options={"inner": "engine"})
    else:
        twin.compile(backend="fusewheel", options={"inner": "engine"})
    counters.clear()
    assert torch.equal(twin.generate(ids, max_new_tokens=6, **OPTIONS), expected)
    assert counters["stats"]["unique_graphs"] == 0
    assert counters["fusewheel"]["append"] == 4 * LAYERS
    return ran


@pytest.mark.parametrize("name", ["Llama", *MORE])
def test_one_layer_is_captured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the prompt and for a token."""
    assert runs(monkeypatch, build(name, num_hidden_layers=LAYERS)) == [0, 0]


def test_equal_operators_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On example values, while the layers are rewritten."""
    ran: Counter[str] = Counter()

    def noting(target: Any, *given: Any) -> Any:
        ran[str(target)] += 1
        return call(target, *given)

    call = equal_calls._call
    monkeypatch.setattr(equal_calls, "_call", noting)
    runs(monkeypatch, build("Llama", num_hidden_layers=LAYERS))
    assert counters["fusewheel"]["add_rms_norm"] == 4 * LAYERS
    assert counters["fusewheel"]["rope"] == 2 * LAYERS
    # For the prompt and for a token.
    assert ran["fusewheel.add_rms_norm.default"] == ran["fusewheel.rope.default"] == 2


def test_captured_weights_may_be_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("Llama", num_hidden_layers=LAYERS)
    fusewheel.quantize_(model, "int8")
    assert runs(monkeypatch, model) == [0, 0]


def gemma() -> Any:
    """A model of two kinds of layers; activations are `functools.partial`."""
    kinds = ["sliding_attention", "full_attention"] * (LAYERS // 2)
    return build("Gemma3Text", num_hidden_layers=LAYERS, layer_types=kinds)


@pytest.mark.parametrize("freeze", [False, True])
def test_one_layer_of_each_kind_is_captured(freeze: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its norms call `weight.float()`, which is the weight, and may require a gradient."""
    assert runs(monkeypatch, gemma(), 4, freeze=freeze) == [0, 1] * 2


def test_layers_with_other_windows_are_captured_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the cache says so, and the masks are alike."""
    given: list[Any] = []

    def noting(layer: Any, *own: Any) -> Any:
        given.append(own[-1])
        return computed(layer, *own)

    monkeypatch.setattr(repeated_layers, "computed", noting)
    model = build("Mistral", num_hidden_layers=LAYERS, sliding_window=1000)
    cache = DynamicCache(config=model.config)
    cache.layers[1].sliding_window = cache.layers[2].sliding_window = 2000
    twin = fusewheel.freeze(model, options={"inner": "engine"})
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        twin(input_ids=ids, use_cache=True, **{cache_argument(): cache})
    assert given == [1000, 2000]


def test_functions_with_other_arguments_are_captured_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = gemma()
    gelu = torch.nn.functional.gelu
    model.model.layers[2].mlp.act_fn.act = functools.partial(gelu, approximate="none")
    model.model.layers[3].mlp.act_fn.act = functools.partial(torch.nn.functional.silu)
    assert runs(monkeypatch, model, 4) == [0, 1, 2, 3] * 2


def _scaling(layers: Any) -> None:
    layers[1].self_attn.scaling = 1.0


def _kind(layers: Any) -> None:
    layers[1].mlp.act_fn = torch.nn.Sigmoid()


def _quantized(layers: Any) -> None:
    fusewheel.quantize_(layers[1], "int8")


def _shared(layers: Any) -> None:
    """Its gate and up projection are one weight."""
    layers[1].mlp.up_proj.weight = layers[1].mlp.gate_proj.weight


def _width(layers: Any) -> None:
    for old, rows in (("gate_proj", True), ("up_proj", True), ("down_proj", False)):
        weight = getattr(layers[1].mlp, old).weight
        half = weight[: len(weight) // 2] if rows else weight[:, : weight.shape[1] // 2]
        getattr(layers[1].mlp, old).weight = torch.nn.Parameter(half.detach().clone())


@pytest.mark.parametrize("differs", [_scaling, _kind, _quantized, _shared, _width])
def test_a_layer_that_differs_is_captured_itself(
    differs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("Llama", num_hidden_layers=LAYERS)
    differs(model.model.layers)
    assert runs(monkeypatch, model) == [0, 1] * 2


ASKED = {"output_hidden_states": True}


@pytest.mark.nightly  # whose twin is test_all_layers_are_traced_for_who_watches_them
@pytest.mark.parametrize("hooked", [False, True])
def test_hidden_states_of_a_frozen_model(hooked: bool) -> None:
    """They are read by hooks, which are installed in the first call that asks for them."""
    model = build("Llama", num_hidden_layers=2).double()
    if hooked:
        model.model.layers[0].register_forward_hook(lambda *call: call[2] * 2)
    frozen = fusewheel.freeze(copy.deepcopy(model), options={"inner": "none"})
    ids = torch.arange(3, 12)[None]
    text, wanted = (
        m.generate(ids, max_new_tokens=3, return_dict_in_generate=True, **ASKED)
        for m in (frozen, model)
    )
    assert torch.equal(text.sequences, wanted.sequences)
    torch.testing.assert_close(text.hidden_states, wanted.hidden_states)


@pytest.mark.parametrize("watched", ["by an argument", "by a hook", "by nobody"])
def test_all_layers_are_traced_for_who_watches_them(watched: str, monkeypatch: Any) -> None:
    model = build("Llama", num_hidden_layers=2)
    if watched == "by a hook":
        model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    monkeypatch.setattr(torch, "compile", lambda call, **_: call)
    frozen = fusewheel.freeze(model, options={"inner": "none"})
    entered = []
    once = EqualLayers.traced_once
    monkeypatch.setattr(
        EqualLayers, "traced_once", lambda layers: entered.append(layers) or once(layers)
    )
    monkeypatch.setattr(DirectCalls, "program", lambda *_: None)
    frozen(torch.arange(3, 12)[None], **(ASKED if watched == "by an argument" else {}))
    assert len(entered) == (watched == "by nobody")


def test_hooks_that_a_capture_installs_are_taken_back() -> None:
    model = build("Llama", num_hidden_layers=2)
    before = Unchanged(model)
    model(torch.arange(3, 12)[None], **ASKED)
    assert any(map(has_hooks, model.modules()))
    assert before.restore()
    assert not any(map(has_hooks, model.modules()))
