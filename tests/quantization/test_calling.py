"""How the functions are called: filters as in torchao, progress, and `input` as in torch.nn."""

from __future__ import annotations

import io
import types
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.quantization import LinearInt4, LinearInt8, calibrate
from torch import nn


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))


def quantized(net: nn.Module, **filters: Any) -> list[str]:
    return [swap.name for swap in fusewheel.quantize_(net, **filters).swapped]


def calibrated(net: nn.Module, **filters: Any) -> list[str]:
    return list(calibrate(net, lambda m: m(torch.ones(1, 32)), **filters))


FUNCTIONS = pytest.mark.parametrize("function", [quantized, calibrated])


@FUNCTIONS
def test_a_filter_gets_the_module_first_as_in_torchao(function: Callable[..., list[str]]) -> None:
    seen = []

    def wanted(module: nn.Module, name: str) -> bool:
        seen.append((type(module), name))
        return name == "2"

    assert function(model(), filter_fn=wanted) == ["2"]
    assert seen == [(nn.Linear, "0"), (nn.Linear, "2")]


@FUNCTIONS
def test_a_filter_with_the_name_first_still_works(function: Callable[..., list[str]]) -> None:
    def wanted(name: str, module: nn.Module) -> bool:
        return isinstance(module, nn.Linear) and name == "0"

    with pytest.warns(DeprecationWarning, match=r"pass filter_fn\(module, name\)") as caught:
        assert function(model(), filter=wanted) == ["0"]
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.raises(ValueError, match=r"filter must be left out where filter_fn is given"):
        function(model(), filter=wanted, filter_fn=lambda module, name: True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    # In place of the whole module: pytest sets sys.stderr anew between a fixture and its test.
    stream = Terminal()
    monkeypatch.setattr("fusewheel._core.progress.sys", types.SimpleNamespace(stderr=stream))
    return stream


def test_progress_is_shown_on_a_terminal(terminal: Terminal) -> None:
    fusewheel.quantize_(model())
    assert "quantize layers" in terminal.getvalue() and "0/2" in terminal.getvalue()
    calibrate(model(), lambda m: [m(torch.ones(1, 32)) for _ in range(3)])
    assert "calibrate: 0it" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")  # the bar is removed


def test_nothing_is_shown_elsewhere(capfd: pytest.CaptureFixture[str]) -> None:
    net = model()
    fusewheel.quantize_(net, calibration=calibrate(net, lambda m: m(torch.ones(1, 32))))
    assert capfd.readouterr() == ("", "")


def test_a_compiled_model_is_calibrated(terminal: Terminal) -> None:
    net = model()
    net.compile(backend="eager", fullgraph=True)
    assert calibrated(net) == ["0", "2"]


@pytest.mark.parametrize("layer", [LinearInt4, LinearInt8])
def test_the_input_is_called_as_in_torch_nn(layer: type[nn.Module]) -> None:
    x, quantized = torch.randn(2, 32), layer.from_linear(nn.Linear(32, 8))
    assert torch.equal(quantized(input=x), quantized(x))
