"""A function that runs on fake tensors becomes a graph that computes the same."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusewheel._torch.fx import Fakes, quiet, storage_key
from fusewheel.compiler.entry.direct.capture import CannotCapture, Capture
from fusewheel.compiler.ir.pattern import Context
from torch import Tensor

WEIGHT, OTHER = torch.randn(4, 4), torch.ones(4)


def captured(function: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """The graph of a function of ``[n, 4]``; it takes the weight first if the function uses it."""
    capture = Capture({id(WEIGHT): "layer.weight"})
    size = capture.fakes.size("n", 5)
    with torch.no_grad(), capture.fakes.mode:
        x = capture.argument("x", torch.empty(size, 4))
        with capture:
            result = function(x)
    assert not capture.fakes.conditions()
    gm = capture.graph(list(result) if isinstance(result, (tuple, list)) else [result])
    return lambda x: gm(*capture.used, x)


def operators(x: Tensor) -> Tensor:
    y = 2.0 - x * 3 + 1 / (x**2 + 1)
    return -y[..., 1:] @ WEIGHT[1:] + (x > 0).float()


def methods(x: Tensor) -> Tensor:
    return x.view(x.shape[0], 2, -1).transpose(1, 2).reshape(x.size(0), -1).mean(-1, keepdim=True)


def functions(x: Tensor) -> Tensor:
    return torch.cat([F.silu(F.linear(x, WEIGHT)), torch.arange(4.0)[None]], dim=0)


def several(x: Tensor) -> tuple[Tensor, ...]:
    left, right = x.chunk(2, dim=-1)
    return left * right, torch.topk(x, 2, dim=-1).indices


def sizes(x: Tensor) -> tuple[Tensor, ...]:
    """Sums and products of sizes, one of which another one uses."""
    double = x.shape[0] * 2
    return x.new_ones(double), x.new_ones(double + 3), torch.arange(4 * double - x.shape[0]) - 1


def bounds(x: Tensor) -> tuple[Tensor, ...]:
    """Slices that begin or end with a size."""
    y = torch.cat([x, 2 * x, 3 * x])
    return y[: x.shape[0]], y[x.shape[0] - 1 :], y[-x.shape[0] :, None], y[None, : 2 * x.shape[0]]


def in_place(x: Tensor) -> tuple[Tensor, ...]:
    """Writes to what the function computed itself, and through a view of that."""
    y = x * 2
    total = y.sum()
    y /= y.abs().sum()
    y[1:].add_(1)
    return y, total, torch.zeros_like(y).scatter_(1, torch.topk(y, 2).indices, 1)


FUNCTIONS = [operators, methods, functions, several, sizes, bounds, in_place]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_computes_the_same(function: Any) -> None:
    graph = captured(function)
    for rows in (5, 3):
        x = torch.randn(rows, 4)
        expected = function(x)
        several = expected if isinstance(expected, tuple) else (expected,)
        for found, one in zip(graph(x), several, strict=True):
            assert torch.equal(found, one)


def three_times(x: Tensor) -> tuple[Tensor, ...]:
    """Equal calls: PyTorch runs the first, makes the second of its sizes, the others are copies."""
    grown = [torch.cat([x, x]) for _ in range(4)]
    views = [one.view(-1, 2, 2)[1:].transpose(1, 2) for one in grown]
    return *grown, *views


def test_equal_results_have_memory_of_their_own() -> None:
    capture = Capture({})
    size = capture.fakes.size("n", 5)
    with torch.no_grad(), capture.fakes.mode:
        found = three_times(torch.empty(size, 4))
        grown, views = found[:4], found[4:]
        memory = [storage_key(one) for one in grown]
        assert len({*memory}) == 4
        assert [storage_key(one) for one in views] == memory
        for one in grown:
            assert one.shape == grown[0].shape == (2 * size, 4)
            assert one.stride() == (4, 1) and one.is_contiguous() and one.device.type == "cpu"
            assert one.untyped_storage().nbytes() == 2 * size * 4 * 4
        for one in views:
            assert one.shape == views[0].shape == (2 * size - 1, 2, 2)
            assert one.stride() == (4, 1, 2) and one.storage_offset() == 4
            assert one.reshape(-1, 4).shape == (2 * size - 1, 4)
    assert not capture.fakes.conditions()


def assign(x: Tensor) -> Tensor:
    y = x * 1
    y[0] = 0
    return y


def autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ WEIGHT


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (assign, "__setitem__ may write"),
        (lambda x: x[1:].mul_(2), "mul_ may write"),
        (lambda x: WEIGHT.t().mul_(2), "mul_ may write"),
        (lambda x: OTHER.mul_(2), "mul_ may write"),
        (lambda x: torch.add(x, x, out=x * 1), "add may write"),
        (lambda x: F.relu(x * 1, inplace=True), "relu may write"),
        (lambda x: torch.ops.aten.add_.Tensor(x * 1, x), "add_ may write"),
        (lambda x: x.sum().item() + x, "a symbol that is no size"),
        (lambda x: x + OTHER, "neither an argument nor of the model"),
        (lambda x: x.T, "graphs do not show __get__"),
        (lambda x: x if x.sum() > 0 else -x, "u0"),
        (lambda x: x.new_zeros(x.shape[0] // 2), "it computes the size"),
        (autocast, "autocast is active"),
    ],
)
def test_refuses(function: Any, reason: str) -> None:
    with pytest.raises((CannotCapture, RuntimeError), match=reason):
        captured(function)


def test_what_an_operator_raises_is_not_printed(caplog: pytest.LogCaptureFixture) -> None:
    fakes = Fakes()
    for is_quiet in (True, False):
        block = quiet() if is_quiet else contextlib.nullcontext()
        with fakes.mode, block, pytest.raises(RuntimeError):
            torch.baddbmm(torch.empty(9, 9, 9), torch.empty(2, 3, 4), torch.empty(2, 4, 6))
        assert bool(caplog.records) != is_quiet


def test_other_threads_go_on_printing(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("torch._subclasses.fake_tensor")
    with quiet():
        thread = threading.Thread(target=log.error, args=("of another thread",))
        thread.start()
        thread.join()
        log.error("of this thread")
    assert [record.message for record in caplog.records] == ["of another thread"]


def test_what_a_rewrite_tries_is_not_printed(caplog: pytest.LogCaptureFixture) -> None:
    fakes = Fakes()
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    with fakes.mode:
        x, left, right = (torch.empty(3, *sizes) for sizes in ((9, 9), (3, 4), (4, 6)))
    node.meta["example_value"] = x
    with pytest.raises(RuntimeError):
        Context(graph).compute(node, torch.baddbmm, (x, left, right), {})
    assert not caplog.records
