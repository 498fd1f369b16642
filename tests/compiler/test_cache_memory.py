"""Growing caches: a write to a tensor changes what it would change without the backend."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.functional import scaled_dot_product_attention

INNER = pytest.mark.parametrize("inner", ["none", "engine"])


def compiled(function: Callable[..., Any], inner: str) -> Callable[..., Any]:
    torch.compiler.reset()
    counters.clear()
    return torch.compile(function, backend="fusewheel", options={"inner": inner}, dynamic=True)


def joined(past: Tensor, new: Tensor) -> tuple[Tensor, ...]:
    keys = torch.cat([past, new], 2)
    return keys, keys.transpose(1, 2).contiguous()


def flat(past: Tensor, new: Tensor) -> tuple[Tensor, ...]:
    keys = torch.cat([past, new], 2)
    batch, heads, rows, size = keys.shape
    rest = keys.transpose(1, 2).reshape(batch, rows, heads * size)
    return keys, rest[:, 1:], rest.sum(-1)


def pieces(past: Tensor, new: Tensor) -> tuple[Tensor, ...]:
    keys, values = torch.cat([past, new], 2), torch.cat([past, new * 2], 2)
    return keys[:, :, -3:], keys, values[:, :1], keys[0], values.reshape(-1)[1:]


def ordered(past: Tensor, new: Tensor) -> tuple[Tensor, ...]:
    keys = torch.cat([past, new], 2).permute(2, 0, 1, 3)
    return keys, keys.contiguous(), keys.flatten(1), new * 2


@INNER
@pytest.mark.parametrize("function", [joined, flat, pieces, ordered], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("batch", "heads"), [(1, 2), (2, 1)])
def test_writes_reach_the_same_tensors(
    function: Callable[..., tuple[Tensor, ...]], inner: str, batch: int, heads: int
) -> None:
    """In the order of memory of a growing cache, some copies would be views, and the reverse."""
    call = compiled(function, inner)
    given = torch.randn(batch, heads, 5, 4), torch.randn(batch, heads, 2, 4)
    for written in range(2 + len(function(*given))):
        both = []
        for run in (function, call):
            tensors = [tensor.clone() for tensor in given]
            with torch.no_grad():
                tensors += run(*tensors)
            tensors[written].zero_()
            both.append(tensors)
        for index, (eager, own) in enumerate(zip(*both, strict=True)):
            assert torch.equal(eager, own), (written, index)


def inside(past: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    keys = torch.cat([past, new], 2)
    return keys, keys.transpose(1, 2).contiguous().view(1, -1, 8).sum(-1)


@INNER
def test_a_copy_that_nobody_sees_may_be_a_view(inner: str) -> None:
    call = compiled(inside, inner)
    given = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 1, 4)
    with torch.no_grad():
        torch.testing.assert_close(call(*given), inside(*given))
    assert counters["fusewheel"]["append"] == 1


def window(past: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    keys = torch.cat([past, new], 2)
    return keys[:, :, -4:], keys.cos().sum((2, 3))


@INNER
def test_arrays_of_a_window(inner: str) -> None:
    """An array of NumPy shows the window it was made of; no later cache changes with it."""
    call = compiled(window, inner)
    with torch.no_grad():
        last, _ = call(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 1, 4))
        array, before = last.numpy(), last.clone()
        new = torch.randn(1, 2, 1, 4)
        longer, _ = call(last, new)
        array[:] = 7
        assert torch.equal(longer, torch.cat([before[:, :, 1:], new], 2))
        assert (last == 7).all()
        again, _ = call(last, new)
    assert torch.equal(again, torch.cat([torch.full((1, 2, 3, 4), 7.0), new], 2))
    assert counters["fusewheel"]["append"] > 0


def step(q: Tensor, keys: Tensor, values: Tensor, new: Tensor) -> tuple[Tensor, ...]:
    keys, values = torch.cat([keys, new], 2), torch.cat([values, new.cos()], 2)
    return scaled_dot_product_attention(q, keys, values, enable_gqa=True), keys, values


@INNER
def test_threads_continue_one_prefix(inner: str) -> None:
    """Each writes a text of its own behind the same rows, which nobody changes."""
    call = compiled(step, inner)
    q, first = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 70, 8)
    with torch.no_grad():
        _, *prefix = call(q, first, first, torch.randn(2, 2, 1, 8))
        call(q, *prefix, torch.randn(2, 2, 1, 8))  # every graph is compiled now
    before = [tensor.clone() for tensor in prefix]
    wrong: list[object] = []
    ready = threading.Barrier(4)

    @torch.no_grad()
    def write(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        cache, expected = prefix, before
        ready.wait()
        for _ in range(20):
            new = torch.randn(2, 2, 1, 8, generator=generator)
            _, *cache = call(q, *cache, new)
            _, *expected = step(q, *expected, new)
            if not all(map(torch.equal, cache, expected)):
                wrong.append(seed)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(map(torch.equal, prefix, before))
