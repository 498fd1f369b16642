"""`fusewheel.freeze`: a model compiled without guards on its modules, and what ends that."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Iterator
from typing import Any

import fusewheel
import pytest
import torch
from compiler.test_caches import OPTIONS, build
from compiler.test_models import tokens
from fusewheel._torch.compiled_module import compiled_call
from fusewheel.compiler.entry import freeze
from torch import Tensor
from torch._dynamo.utils import counters

NONE = {"inner": "none"}


class Net(torch.nn.Module):
    """A few layers; `scale` is a number that compiled code depends on."""

    def __init__(self, layers: int = 2, width: int = 4) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        self.register_buffer("shift", torch.randn(width))
        self.drop = torch.nn.Dropout(0.5)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.nn.functional.silu(layer(x)) * self.scale
        return self.drop(x + self.shift)


class Scaled(torch.nn.Module):
    """A layer of which compiled code depends on a number, and which may be compiled by itself."""

    def __init__(self, scale: float, breaks: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = scale
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        if self.breaks:
            torch._dynamo.graph_break()
        return self.linear(x) * self.scale


class Broken(torch.nn.Module):
    """Layers that differ in a number, with a break of the graph in or between them."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Scaled(float(n), inside) for n in range(1, 4))
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            if not self.inside:
                torch._dynamo.graph_break()
        return x


@pytest.fixture
def frozen() -> Any:
    net = Net().eval()
    counters.clear()
    return fusewheel.freeze(net, options=NONE)


@pytest.fixture(autouse=True)
def errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _assert_right(net: Any, x: Tensor) -> None:
    torch.testing.assert_close(net(x), net.forward(x))


@pytest.mark.parametrize("inside", [False, True], ids=["between", "inside"])
def test_layers_that_are_compiled_by_themselves(inside: bool) -> None:
    net = fusewheel.freeze(Broken(inside), options=NONE)
    for _ in range(3):
        _assert_right(net, torch.randn(3, 4))


def test_computes_the_same(frozen: Any) -> None:
    x = torch.randn(3, 4)
    _assert_right(frozen, x)
    _assert_right(frozen, x)
    assert counters["stats"]["unique_graphs"] == 1
    assert not frozen.training
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


@pytest.mark.parametrize("enabled", [True, False])
def test_collects_no_garbage_while_it_compiles(enabled: bool) -> None:
    seen = []

    class Asking(Net):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(gc.isenabled())
            return x

    asking = fusewheel.freeze(Asking(), options=NONE)
    asking._compiled_call_impl._compile = lambda: asking.forward  # instead of Dynamo
    try:
        if not enabled:
            gc.disable()
        for _ in range(3):
            asking(torch.randn(2))
            assert gc.isenabled() == enabled
    finally:
        gc.enable()
    assert seen == [False, False, enabled]


def test_values_may_change(frozen: Any) -> None:
    x = torch.randn(3, 4)
    frozen(x)
    with torch.no_grad():
        for parameter in frozen.parameters():
            parameter.mul_(2)
    _assert_right(frozen, x)
    assert counters["stats"]["unique_graphs"] == 1


def test_generates() -> None:
    model = build("Llama")
    ids = tokens(9, 1)
    expected = model.generate(ids, max_new_tokens=6, **OPTIONS)
    counters.clear()
    fusewheel.freeze(model, options=NONE)
    assert torch.equal(model.generate(ids, max_new_tokens=6, **OPTIONS), expected)
    assert counters["stats"]["unique_graphs"] == 0  # see test_direct.py


def test_looks_once_for_a_text(monkeypatch: Any) -> None:
    """Before the prompt and no token, unless time has passed; a changed layer is seen then."""
    model = build("Llama")
    ids = tokens(9, 1)
    fusewheel.freeze(model, options=NONE)
    monkeypatch.setattr(freeze, "_FRESH", 60.0)
    looks: list[bool] = []
    look = freeze._Frozen._is_unchanged
    monkeypatch.setattr(
        freeze._Frozen, "_is_unchanged", lambda self: looks.append(True) or look(self)
    )
    for text in range(2):
        model.generate(ids, max_new_tokens=6, **OPTIONS)
        assert len(looks) == text + 1
    monkeypatch.setattr(freeze, "_FRESH", 0.0)
    model.generate(ids, max_new_tokens=6, **OPTIONS)
    assert len(looks) == 8
    monkeypatch.setattr(freeze, "_FRESH", 60.0)
    model.lm_head = torch.nn.Linear(model.config.hidden_size, 50)
    with pytest.warns(UserWarning, match="because lm_head has changed"):
        found = model.generate(ids, max_new_tokens=6, **OPTIONS)
    assert found[:, 9:].max() < 50


def test_guards_on_modules_are_left_out(frozen: Any) -> None:
    """What the page says is not seen is not seen; with guards it is."""
    x = torch.randn(3, 4)
    before = frozen(x)
    frozen.scale = 3.0
    assert torch.equal(frozen(x), before)
    fusewheel.freeze(frozen, options=NONE)
    _assert_right(frozen, x)
    assert not torch.equal(frozen(x), before)


def _replace_layer(net: Any) -> None:
    net.layers[1] = torch.nn.Linear(4, 4, bias=False)


def _replace_parameter(net: Any) -> None:
    net.layers[0].weight = torch.nn.Parameter(torch.ones(4, 4))


def _replace_buffer(net: Any) -> None:
    net.shift = torch.zeros(1)


def _add_layer(net: Any) -> None:
    net.layers.append(torch.nn.Linear(4, 4))


def _remove_bias(net: Any) -> None:
    net.layers[0].bias = None


def _train_part(net: Any) -> None:
    net.layers[0].weight.requires_grad_()


CHANGES = {
    _replace_layer: "layers.1",
    _replace_parameter: "layers.0.weight",
    _replace_buffer: "shift",
    _add_layer: "a layer",
    _remove_bias: "layers.0.bias",
    _train_part: "layers.0.weight",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_changes_are_seen(frozen: Any, change: Any) -> None:
    x = torch.randn(3, 4)
    frozen(x)
    change(frozen)
    with pytest.warns(UserWarning, match=f"because {CHANGES[change]} has changed") as caught:
        _assert_right(frozen, x)
    assert caught[0].filename == __file__
    _assert_right(frozen, x)  # without a warning, and with guards
    frozen.scale = 3.0
    _assert_right(frozen, x)


def test_another_dtype_is_seen(frozen: Any) -> None:
    frozen(torch.randn(3, 4))
    frozen.double()
    with pytest.warns(UserWarning, match="because shift has changed"):
        _assert_right(frozen, torch.randn(3, 4).double())


def test_trains_afterwards(frozen: Any) -> None:
    """Nothing of the graph without gradients is used."""
    x = torch.randn(3, 4)
    frozen(x)
    twin = Net()
    twin.load_state_dict(frozen.state_dict())
    frozen.requires_grad_().train()
    twin.train()
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match="layers.0.weight|training mode of the model"):
        frozen(x).square().sum().backward()
    torch.manual_seed(1)
    twin(x).square().sum().backward()
    for mine, other in zip(frozen.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_two_models_of_one_class() -> None:
    """Without guards each would take the other one's graph."""
    x = torch.randn(3, 4)
    nets = [Net(layers) for layers in (1, 3, 2)]
    for net in nets:
        fusewheel.freeze(net, options=NONE)
        net(x)
    plain = Net(4).eval()
    plain.compile(backend="fusewheel", options=NONE)
    for net in (*nets, plain):
        _assert_right(net, x)


def test_a_copy_is_not_frozen(frozen: Any) -> None:
    x = torch.randn(3, 4)
    frozen(x)
    twin = copy.deepcopy(frozen)
    twin.scale = 3.0
    _assert_right(twin, x)


def test_patterns_can_be_switched_off(frozen: Any) -> None:
    """What a frozen model has compiled is dropped too."""
    x = torch.randn(3, 4)
    frozen(x)
    with fusewheel.compiler.disable("gelu"):
        frozen(x)
    assert counters["stats"]["unique_graphs"] == 2


def test_takes_a_compiled_model() -> None:
    net = Net()
    assert fusewheel.freeze(torch.compile(net, backend="eager"), options=NONE) is net


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"model": len}, TypeError, "model must be a torch.nn.Module, got builtin_function"),
        ({"model": Net(), "backend": "eager"}, TypeError, "takes no backend"),
        ({"model": Net(), "options": {"guard_filter_fn": len}}, ValueError, "guard_filter_fn"),
    ],
)
def test_refuses(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^freeze: .*{text}"):
        fusewheel.freeze(**arguments)


@pytest.mark.parametrize("strict", [False, True])
def test_a_frozen_model_is_exported_and_stays_frozen(strict: bool):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    x = torch.randn(2, 8)
    want = model.eval()(x)
    fusewheel.freeze(model)
    call = compiled_call(model)
    program = torch.export.export(model, (x,), strict=strict)
    torch.testing.assert_close(program.module()(x), want)
    torch.testing.assert_close(fusewheel.export(model, (x,)).module()(x), want)
    torch.testing.assert_close(torch.compile(lambda x: model(x) + 1, backend="eager")(x), want + 1)
    assert compiled_call(model) is call, "frozen as before"
