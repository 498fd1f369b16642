"""The choice between Inductor and no code generator: the estimate, and what follows from it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler.cost.codegen_gain import WORTHWHILE, gain
from fusewheel.compiler.entry.dynamo import compile_graph
from fusewheel.compiler.match.report import Recorder
from torch import Tensor, nn


def _gain(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> float:
    found: list[float] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        compiled = compile_graph(gm, example_inputs, Recorder(), "eager")
        found.append(gain(gm))
        return compiled

    torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    (result,) = found
    return result


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the inner compilers that were asked for; none of them runs."""
    names: list[str] = []

    def inner(name: str, *_: Any) -> Any:
        names.append(name)
        return lambda gm, example_inputs: gm

    monkeypatch.setattr(importlib.import_module("fusewheel.compiler.entry.dynamo"), "_inner", inner)
    return names


class Block(nn.Module):
    """What most language models end a layer with."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(64, 256), nn.Linear(64, 256)
        self.norm, self.down = nn.RMSNorm(64), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        result: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return result


def test_products_and_fused_operators_gain_nothing() -> None:
    assert _gain(Block(), torch.randn(32, 64)) == 0


def test_an_operator_with_a_kernel_of_its_own_is_not_generated() -> None:
    """Nor where its overload is not named, as in a layer of 4-bit weights."""

    def f(x: Tensor) -> Tensor:
        result: Tensor = torch.ops.fusewheel.muladd(torch.exp(x), x, 1.0)
        return result

    assert _gain(f, torch.randn(300, 300)) == 0


def test_lone_operation_gains_nothing() -> None:
    into, out = nn.Linear(64, 64), nn.Linear(64, 64)
    assert _gain(lambda x: out(F.relu(into(x)).transpose(0, 1)), torch.randn(64, 64)) == 0


def test_neighbours_gain_through_a_view() -> None:
    assert _gain(lambda x: torch.exp(x + 1).mT.cos(), torch.randn(300, 300)) > 0.5
    assert _gain(lambda x: torch.relu_(x + 1), torch.randn(300, 300)) > 0.25


def test_a_little_arithmetic_beside_large_products_gains_little() -> None:
    layer = nn.Linear(1024, 1024)

    def f(x: Tensor) -> Tensor:
        result: Tensor = torch.tanh(layer(x)) * 2 + 1
        return result

    small = _gain(f, torch.randn(1, 1024))
    assert 0 < small < WORTHWHILE
    assert _gain(lambda x: torch.tanh(x[:, :1024]) * 2 + 1, torch.randn(1, 1024)) > 10 * small


def test_convolution_counts_as_gain() -> None:
    layer = nn.Conv1d(8, 8, 3)
    assert _gain(lambda x: layer(x), torch.randn(2, 8, 300)) > 0.9


def test_rows_of_a_table_are_not_the_table() -> None:
    table = nn.Embedding(100_000, 8)
    ids = torch.arange(50_000)
    assert _gain(lambda: torch.exp(table(ids) + 1)) > 0.1


def test_symbolic_sizes_count_as_captured() -> None:
    x = torch.randn(300, 300)
    f = lambda x: torch.exp(x + 1).cos()  # noqa: E731
    assert _gain(f, x, dynamic=True) == pytest.approx(_gain(f, x))


def test_language_model_needs_no_generator(chosen: list[str]) -> None:
    torch.compile(Block(), backend="fusewheel")(torch.randn(32, 64))
    assert chosen == ["none"]


def test_chain_is_generated(chosen: list[str]) -> None:
    torch.compile(lambda x: torch.exp(x + 1).cos(), backend="fusewheel")(torch.randn(9))
    assert chosen == ["inductor"]


@pytest.mark.parametrize(
    "asked", [{"mode": "reduce-overhead"}, {"options": {"max_autotune": True}}]
)
def test_what_is_meant_for_inductor_goes_there(chosen: list[str], asked: dict[str, Any]) -> None:
    torch.compile(nn.Linear(3, 3), backend="fusewheel", **asked)(torch.randn(2, 3))
    assert chosen == ["inductor"]


def test_other_devices_are_left_to_inductor(chosen: list[str]) -> None:
    layer = nn.Linear(3, 3, device="meta")
    torch.compile(layer, backend="fusewheel")(torch.randn(2, 3, device="meta"))
    assert chosen == ["inductor"]
