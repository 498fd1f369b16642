"""`append`: what a cache computes by `cat`, without copying the rows that are there."""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from typing import Any

import pytest
import torch
from fusewheel.engine.growing import append
from torch import Tensor
from torch.nn import functional

EMPTY = torch.tensor([])
# The smallest number of free rows of a new allocation, see cpu_kernels/engine/append.cc.
LEAST = 64
memory_of = torch._C._data_address  # which is no write, unlike `data_ptr`


def rows(count: int, **options: Any) -> Tensor:
    return torch.randn(2, 3, count, 4, **options)


def start(count: int = 5) -> tuple[Tensor, Tensor]:
    """A cache of some rows, and the same rows."""
    first = rows(count)
    return append(EMPTY, first), first


def shares(a: Tensor, b: Tensor) -> bool:
    """Whether two caches lie in the same memory."""
    return memory_of(a) == memory_of(b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_values(dtype: torch.dtype) -> None:
    expected = actual = torch.tensor([], dtype=dtype)
    for count in (3, 1, 1, LEAST, 1, 2 * LEAST, 0, 1):
        new = (100 * rows(count)).to(dtype)
        actual, expected = append(actual, new), torch.cat([expected, new], -2)
        assert actual.dtype == dtype
        assert torch.equal(actual, expected)


def test_rows_are_copied_only_when_the_room_is_full() -> None:
    cache, _ = start()
    addresses = set()
    for _ in range(LEAST):
        cache = append(cache, rows(1))
        addresses.add(memory_of(cache))
    assert len(addresses) == 1
    strides = cache.stride()
    for _ in range(8):  # what is left of the last 64 bytes
        cache = append(cache, rows(1))
    assert memory_of(cache) not in addresses
    assert cache.stride() == strides == (12, 4, 24, 1)


def test_two_continuations_of_one_prefix() -> None:
    cache, first = start()
    a, b = rows(1), rows(1)
    one, two = append(cache, a), append(cache, b)
    assert torch.equal(one, torch.cat([first, a], -2))
    assert torch.equal(two, torch.cat([first, b], -2))
    assert torch.equal(cache, first)
    assert shares(one, cache)
    assert not shares(two, cache)


WRITES = {
    "element": lambda t: t.__setitem__((0, 0, 0, 0), 7.0),
    "zero_": lambda t: t.zero_(),
    "mul_": lambda t: t.mul_(2),
    "view": lambda t: t[:, 1].transpose(0, 1).fill_(3),
    "data": lambda t: t.data.add_(1),
    "numpy": lambda t: t.numpy().__setitem__(0, 5.0),
    "out": lambda t: torch.neg(t.clone(), out=t),
    "set_data_ptr": lambda t: torch.from_dlpack(t).fill_(9),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("which", ["older", "newer"])
def test_writes_of_the_user(write: Any, which: str) -> None:
    """A write in place to one cache changes no other one, before or after it."""
    older, _ = start()
    newer = append(older, rows(1))
    written, other = (older, newer) if which == "older" else (newer, older)
    expected, kept = written.clone(), other.clone()
    write(written)
    write(expected)
    assert torch.equal(written, expected)
    assert torch.equal(other, kept)
    # Both can be continued.
    for cache in (written, other):
        new = rows(2)
        expected = torch.cat([cache.clone(), new], -2)
        assert torch.equal(append(cache, new), expected)
    assert torch.equal(other, kept)


def test_crop() -> None:
    """What was cropped stays with those who hold it."""
    cache, first = start()
    new = rows(2)
    cropped = cache[..., :-3, :]
    longer = append(cropped, new)
    assert torch.equal(longer, torch.cat([first[:, :, :2], new], -2))
    assert torch.equal(cache, first)


def test_sliding_window() -> None:
    """The last rows are a view of the room, and can be continued in it."""
    window = expected = None
    copies, kept = set(), []
    cache = past = EMPTY
    for _ in range(3 * LEAST):
        new = rows(1)
        cache, past = append(cache, new), torch.cat([past, new], -2)
        window, expected = cache[:, :, -7:, :], past[:, :, -7:, :]
        assert torch.equal(window, expected)
        copies.add(memory_of(cache))
        kept.append(cache)  # so that no address is used twice
        cache, past = window, expected
    assert len(copies) == 3


OTHER_VIEWS = {
    "heads": lambda t: t[:, 1:],
    "features": lambda t: t[..., 1:],
    "every second": lambda t: t[:, :, ::2],
    "transposed": lambda t: t.transpose(0, 1),
    "batch": lambda t: t[1:],
    "reordered": lambda t: t.index_select(0, torch.tensor([1, 0])),
    "repeated": lambda t: t.repeat_interleave(2, dim=0),
    "bits": lambda t: t.view(torch.int32),
    "expanded": lambda t: t[:1].expand(2, -1, -1, -1),
}


@pytest.mark.parametrize("view", OTHER_VIEWS.values(), ids=OTHER_VIEWS)
def test_other_views_are_copied(view: Any) -> None:
    cache, first = start()
    past, expected = view(cache), view(first)
    new = torch.ones_like(expected[:, :, :1])
    assert torch.equal(append(past, new), torch.cat([expected, new], -2))
    assert torch.equal(cache, first)


def test_copies_have_memory_of_their_own() -> None:
    cache, first = start()
    file = io.BytesIO()
    torch.save(cache, file)
    file.seek(0)
    for twin in (copy.deepcopy(cache), torch.load(file), cache.clone()):
        assert torch.equal(twin, first)
        a, b = rows(1), rows(1)
        longer = append(twin, a)
        assert torch.equal(append(cache, b), torch.cat([first, b], -2))
        assert torch.equal(longer, torch.cat([first, a], -2))


def test_a_saved_cache_holds_nothing_else() -> None:
    cache, _first = start()
    whole = torch.empty(0).set_(copy.deepcopy(cache).untyped_storage())
    free = whole[cache.numel() :]
    assert free.numel() > LEAST and free[:-16].count_nonzero() == 0


def test_moves_between_threads() -> None:
    """Many threads continue the same cache, and each its own afterwards."""
    cache, first = start()
    results = dict[int, tuple[Tensor, Tensor]]()
    ready = threading.Barrier(8)

    def run(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        mine, expected = cache, first
        ready.wait()
        for _ in range(100):
            new = rows(1, generator=generator)
            mine, expected = append(mine, new), torch.cat([expected, new], -2)
        results[seed] = mine, expected

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for mine, expected in results.values():
        assert torch.equal(mine, expected)
    assert torch.equal(cache, first)


def test_an_array_of_numpy_shows_its_own_cache() -> None:
    """It was made while the cache was the only one over its memory."""
    cache, first = start()
    array = cache.numpy()
    longer = append(cache, rows(1))
    array[0] = 7
    assert (cache[0] == 7).all()
    assert torch.equal(longer[:, :, :5], first)


def test_inference_mode() -> None:
    """A cache that is made in inference mode is continued outside of it, and the reverse."""
    with torch.inference_mode():
        cache, first = start()
        assert cache.is_inference()
    new = rows(1)
    longer = append(cache, new)
    assert shares(longer, cache)
    with torch.inference_mode():
        again = append(longer, new)
    assert torch.equal(again, torch.cat([first, new, new], -2))
    assert again.is_inference()


def test_forward_mode() -> None:
    cache, first = start()
    with torch.autograd.forward_ad.dual_level():
        new, tangent = rows(1), rows(1)
        dual = torch.autograd.forward_ad.make_dual(new, tangent)
        found = torch.autograd.forward_ad.unpack_dual(append(cache, dual))
        assert torch.equal(found.primal, torch.cat([first, new], -2))
        assert torch.equal(found.tangent[:, :, 5:], tangent)


def test_memory_goes_with_the_last_view() -> None:
    cache, _ = start()
    kept = weakref.ref(cache.untyped_storage()._fusewheel_kept)
    view = append(cache, rows(1))[:, :, 2:]
    gc.disable()
    try:
        assert kept() is not None
        del cache
        assert kept() is not None
        del view
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("cloned", [False, True])
def test_a_write_after_the_older_caches_are_gone(cloned: bool) -> None:
    """Also to the only cache of an allocation, and where another tensor was continued in it."""
    cache, first = start()
    cache = append(cache, new := rows(1))
    if cloned:
        cache = torch._lazy_clone(cache)
    cache = append(cache, more := rows(1))
    before = memory_of(cache)
    cache.numpy()[0] = 7
    assert memory_of(cache) != before
    assert (cache[0] == 7).all()
    assert torch.equal(cache[1:], torch.cat([first, new, more], -2)[1:])


def test_what_does_not_fit() -> None:
    cache, _ = start()
    for new in (rows(1)[:1], rows(1)[:, :2], rows(1)[..., :3], rows(1).double()):
        with pytest.raises(RuntimeError, match=r"append|run: inputs"):
            append(cache, new)
    assert append(cache, rows(0)).shape == cache.shape
    nothing = torch.empty(2, 0, 3, 4)
    assert append(append(EMPTY, nothing), nothing).shape == (2, 0, 6, 4)


def test_attention_reads_the_view() -> None:
    """It takes the strides, and does not count as a write, which would copy."""
    cache, _ = start()
    before = memory_of(cache)
    for queries in (1, 3):
        q = torch.randn(2, 6, queries, 4)
        functional.scaled_dot_product_attention(q, cache, cache, enable_gqa=True)
        torch.ops.fusewheel.attention(q, cache, cache, None, None, -1, -1, 0.5, 0.0)
    assert memory_of(cache) == before
    assert shares(append(cache, rows(1)), cache)
