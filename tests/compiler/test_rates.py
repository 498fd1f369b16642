"""The three constants of the machine: measured once, where they matter, or given."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fusewheel.compiler.cost import codegen_gain, overrides, rates
from fusewheel.compiler.cost.rates import SHARED, VARIABLES, Rates
from torch.utils._python_dispatch import TorchDispatchMode

ONE_CORE = Rates(1000.0, 100.0, 10.0)
forget = rates._measured.cache_clear


@pytest.fixture(autouse=True)
def _not_given(fresh: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name)
    forget()
    yield
    forget()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of a call for each time that the machine is measured."""
    found: list[float] = []

    def calling(tensor: torch.Tensor, function: Any) -> float:
        if function is torch.add:
            found.append(2.0**-20)
            return found[-1]
        return float(len(tensor))

    monkeypatch.setattr(rates, "_copying", lambda: 2.0**-16)
    monkeypatch.setattr(rates, "_calling", calling)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    return found


def test_this_machine() -> None:
    """Each is a power of two for one core, and not off by a thousand."""
    one = rates._measured()
    for value, shared in zip(one, SHARED, strict=True):
        assert math.log2(value).is_integer() and 1e-3 < value / shared < 1e3


@pytest.mark.parametrize(
    ("number", "expected"), [(1.0, 1.0), (1.4, 1.0), (1.5, 2.0), (2.7e10, 2.0**35), (9e-7, 2**-20)]
)
def test_rounding(number: float, expected: float) -> None:
    assert rates.rounded(number) == expected


def test_measured_once(measured: list[float]) -> None:
    found: list[Rates] = []
    threads = [threading.Thread(target=lambda: found.append(rates.rates())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 64 products of 24 rows and 48: the flops of the difference in 24 seconds.
    flops = rates.rounded(2 * (48**3 - 24**3) / 24)
    assert found == [Rates(2.0**34, flops, 2.0**-20)] * 8
    assert len(measured) == 1


def test_threads_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_measured", lambda: ONE_CORE)
    for threads, expected in ((1, (1000, 100, 10)), (2, (2000, 200, 10)), (8, (4000, 800, 10))):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        assert rates.rates() == expected


def test_given(monkeypatch: pytest.MonkeyPatch, measured: list[float]) -> None:
    monkeypatch.setenv("FUSEWHEEL_COMPILER_SECONDS_PER_CALL", "3e-6")
    assert rates.rates() == rates.rates()._replace(seconds_per_call=3e-6)
    assert len(measured) == 1
    monkeypatch.setenv("FUSEWHEEL_COMPILER_BYTES_PER_SECOND", "1e10")
    monkeypatch.setenv("FUSEWHEEL_COMPILER_FLOPS_PER_SECOND", "1e11")
    forget()
    assert rates.rates() == Rates(1e10, 1e11, 3e-6)
    assert len(measured) == 1


@pytest.mark.parametrize("value", ["fast", "0", "-1", "nan", "inf"])
@pytest.mark.parametrize("name", VARIABLES)
def test_no_positive_number(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} must be a positive number, got '{value}'"):
        rates.rates()


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES[0], "")
    assert overrides.positive(VARIABLES[0]) is None


def test_several_processes_take_the_same(
    monkeypatch: pytest.MonkeyPatch, measured: list[float]
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert rates.rates() == SHARED and not measured
    monkeypatch.setenv(VARIABLES[0], "1e10")
    assert rates.rates() == SHARED._replace(bytes_per_second=1e10) and not measured


class Watching(TorchDispatchMode):
    """Notes the operators that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_what_is_active_around_it_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[torch.Tensor] = []

    def calling(tensor: torch.Tensor, function: Any) -> float:
        results.append(function(tensor.requires_grad_(), tensor))
        return float(len(tensor))

    monkeypatch.setattr(rates, "_calling", calling)
    with Watching() as mode, torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        rates.rates()
    assert not mode.seen
    facts = {(r.dtype, r.device.type, r.requires_grad) for r in results}
    assert facts == {(torch.float32, "cpu", False)}


def _graph(*operations: Any) -> torch.fx.GraphModule:
    """The operations in turn, each of the result before it."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["example_value"] = torch.ones(8, 8)
    for operation in operations:
        node = graph.call_function(operation, (node, *[node] * (operation is torch.mm)))
        node.meta["example_value"] = torch.ones(8, 8)
    graph.output(node)
    return torch.fx.GraphModule({}, graph)


def test_only_where_it_matters(measured: list[float]) -> None:
    """Where nothing can be saved, the machine is not asked."""
    assert codegen_gain.gain(_graph(torch.mm, torch.exp, torch.mm)) == 0
    assert not measured
    assert codegen_gain.gain(_graph(torch.mm, torch.exp, torch.cos)) > 0
    assert len(measured) == 1


def test_each_constant_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _graph(torch.mm, torch.exp, torch.cos)
    matrix, flops = 4.0 * 8**2, 2.0 * 8**3

    def gain(copied: float, multiplied: float, called: float) -> float:
        for name, value in zip(VARIABLES, (copied, multiplied, called), strict=True):
            monkeypatch.setenv(name, str(value))
        return codegen_gain.gain(graph)

    # One of three calls is saved, and two of the six times that a matrix is read or written.
    assert gain(1e30, 1e30, 1.0) == pytest.approx(1 / 3)
    assert gain(1.0, 1e30, 1e-30) == pytest.approx(1 / 3)
    # The product takes longer than its matrices.
    assert gain(1.0, 1e-2, 1e-30) == pytest.approx(2 * matrix / (100 * flops + 4 * matrix))
    assert gain(1.0, 1e-2, 5.0) == pytest.approx((5 + 2 * matrix) / (15 + 100 * flops + 4 * matrix))
