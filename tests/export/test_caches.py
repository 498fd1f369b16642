"""What Inductor's caches know of fusewheel, and in which threads Inductor uses it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import torch
import torch.compiler.config as shared
import torch.nn.functional as F
from fusewheel._torch import settings
from nightly import NIGHTLY
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import codecache, config
from torch._inductor.compile_fx import _recursive_pre_grad_passes
from torch.fx import GraphModule

TAG = f"fusewheel-{fusewheel.__version__}"


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def inputs() -> list[Tensor]:
    """Fewer elements do not pay with Inductor."""
    return [torch.randn(512, 2048, requires_grad=True) for _ in range(2)]


def in_a_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    (result,) = results
    return result


@pytest.fixture
def tags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[bool, str]]:
    """Of every graph whose key is computed: whether it is a backward, and the tag."""
    # What a cache already has, backward included, is not looked up again.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found: list[tuple[bool, str]] = []
    details = codecache.FxGraphHashDetails
    compute = details.__init__

    def noting(self: Any, *arguments: Any, **options: Any) -> None:
        compute(self, *arguments, **options)
        found.append((bool(self.fx_kwargs.get("is_backward")), self.cache_key_tag))

    monkeypatch.setattr(details, "__init__", noting)
    return found


ENTRY = settings._entry(shared, "cache_key_tag")
# Of the thread, or of the process.
THREADED = isinstance(ENTRY.user_override, ContextVar)


@pytest.fixture
def untagged() -> Iterator[None]:
    """Without a tag of the user's, which every other test has."""
    before = settings._own(ENTRY)
    settings._assign(ENTRY, settings._UNSET)
    yield
    settings._assign(ENTRY, before)


WAYS = {
    "backend": {"backend": "fusewheel", "options": {"inner": "inductor"}},
    "enable": {},
    "enabled": {},
}


# Of two switches a change tries the one that holds for a block.
@pytest.mark.parametrize("way", ["backend", pytest.param("enable", marks=NIGHTLY), "enabled"])
def test_forward_and_backward_know_the_version(way: str, tags: list[tuple[bool, str]]) -> None:
    compiled = torch.compile(swiglu, **WAYS[way])
    if way == "enable":
        fusewheel.inductor.enable()
    if way == "enabled":
        with fusewheel.inductor.enabled():
            result = compiled(*inputs())
    else:
        result = compiled(*inputs())
    assert tags and not any(is_backward for is_backward, _ in tags)  # it is compiled when it runs
    result.sum().backward()
    fusewheel.inductor.disable()
    assert {is_backward for is_backward, _ in tags} == {False, True}
    assert all(TAG in tag for _, tag in tags), tags


@pytest.mark.parametrize(
    "thread", [in_a_thread, pytest.param(lambda function: function(), marks=NIGHTLY)]
)
def test_operators_called_by_hand_are_known_by_their_version(
    thread: Callable[..., Any], tags: list[tuple[bool, str]], untagged: None
) -> None:
    compiled = torch.compile(fusewheel.silu_mul)
    thread(lambda: compiled(*inputs()).sum().backward())
    assert [is_backward for is_backward, _ in tags].count(True) == 1
    assert {tag for _, tag in tags} == {TAG}


def test_a_tag_from_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_CACHE_KEY_TAG", "mine")
    code = "import fusewheel, torch.compiler.config as config; print(config.cache_key_tag)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == f"mine{TAG}"


def rewritten() -> int:
    """How often Inductor would replace something in a function that is compiled now."""
    before = counters["fusewheel"]["silu_mul"]

    def backend(gm: GraphModule, inputs: Any) -> Any:
        _recursive_pre_grad_passes(gm, inputs)
        return gm

    torch.compile(lambda gate, up: swiglu(gate, up), backend=backend)(*inputs())
    return int(counters["fusewheel"]["silu_mul"] - before)


def test_enable_holds_in_every_thread() -> None:
    fusewheel.inductor.enable()
    assert (in_a_thread(rewritten), rewritten()) == (1, 1)
    fusewheel.inductor.disable()
    assert (in_a_thread(rewritten), rewritten()) == (0, 0)
    in_a_thread(fusewheel.inductor.enable)
    assert (in_a_thread(rewritten), rewritten()) == (1, 1)
    in_a_thread(fusewheel.inductor.disable)
    assert (in_a_thread(rewritten), rewritten()) == (0, 0)


def test_a_thread_that_has_looked_follows_too() -> None:
    """Torch keeps what a thread has read of some settings as the thread's own."""
    steps = [threading.Event() for _ in range(6)]
    found: list[int] = []

    def worker() -> None:
        for turn in range(0, 6, 2):
            steps[turn].wait(60)
            found.append(rewritten())
            steps[turn + 1].set()

    thread = threading.Thread(target=worker)
    thread.start()
    for turn, switch in enumerate(("enable", "disable", "enable")):
        getattr(fusewheel.inductor, switch)()
        steps[2 * turn].set()
        assert steps[2 * turn + 1].wait(60)
    thread.join()
    fusewheel.inductor.disable()
    assert found == [1, 0, 1]


def test_a_block_holds_for_its_thread() -> None:
    with fusewheel.inductor.enabled():
        assert (rewritten(), in_a_thread(rewritten)) == (1, 0 if THREADED else 1)
    assert (rewritten(), in_a_thread(rewritten)) == (0, 0)
    # It leaves nothing behind that would hide what another thread switches on.
    in_a_thread(fusewheel.inductor.enable)
    assert rewritten() == 1
    with fusewheel.inductor.enabled():
        assert rewritten() == 1
    assert (rewritten(), in_a_thread(rewritten)) == (1, 1)
    fusewheel.inductor.disable()


def test_disable_reaches_what_a_patch_has_kept() -> None:
    fusewheel.inductor.enable()
    with config.patch(pre_grad_custom_pass=None):
        assert rewritten() == 0
    # The block has assigned to this thread what it found.
    in_a_thread(fusewheel.inductor.disable)
    assert rewritten() == 0
