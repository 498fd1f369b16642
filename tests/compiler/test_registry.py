"""Patterns of other packages, and patterns that are switched off."""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler import Disabled, Pattern, disable, disabled, register, unregister
from fusewheel.compiler.ir.canonical import spell
from fusewheel.compiler.match.registry import _installed, known_patterns
from fusewheel.compiler.patterns.silu_mul import PATTERN

Tensor = torch.Tensor
OWN = dataclasses.replace(PATTERN, name="own", order=-9)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Has one match."""
    return F.silu(gate) * up


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape)


@pytest.fixture
def own() -> Iterator[Pattern]:
    """A pattern that runs before all others, registered."""
    yield register(OWN)
    unregister("own")


@pytest.fixture
def targets() -> list[list[Any]]:
    """Collects the calls in each graph that the inner compiler gets."""
    return []


@pytest.fixture
def compiled(targets: list[list[Any]]) -> Any:
    """A function compiled by the backend of that name."""

    def inner(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        targets.append([node.target for node in gm.graph.nodes if node.op == "call_function"])
        return gm

    return torch.compile(swiglu, backend="fusewheel", options={"inner": inner})


def test_registered(compare: Any, own: Pattern) -> None:
    assert register(own) is own
    assert compare(swiglu, _x(3, 4), _x(3, 4)).counts() == {"own": 1}
    assert known_patterns()[0] is own


def test_not_registered_any_more(compare: Any) -> None:
    register(OWN)
    unregister("own")
    assert compare(swiglu, _x(3, 4), _x(3, 4)).counts() == {"silu_mul": 1}
    with pytest.raises(ValueError, match="no registered pattern is called 'silu_mul', there are"):
        unregister("silu_mul")


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "function": (swiglu, TypeError, "Pattern is expected, not function"),
    "class": (Pattern, TypeError, "Pattern is expected, not type"),
    "taken": (
        dataclasses.replace(PATTERN, operator="a::b"),
        ValueError,
        "'silu_mul' is there already, it emits fusewheel::silu_mul",
    ),
    "operator": (dataclasses.replace(OWN, operator="silu_mul"), ValueError, "'namespace::name'"),
    "anchor": (
        dataclasses.replace(OWN, anchors=frozenset({"sillu"})),
        ValueError,
        "no operation is called 'sillu', there are add, .*silu",
    ),
    "no_anchor": (dataclasses.replace(OWN, anchors=frozenset()), ValueError, "no anchors"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case: str) -> None:
    before = known_patterns()
    pattern, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        register(pattern)
    assert known_patterns() == before


def test_name_of_a_registered_pattern(own: Pattern) -> None:
    with pytest.raises(ValueError, match="'own' is there already"):
        register(dataclasses.replace(own, order=3))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with a pattern, a function in its place, and one that does not load."""
    info = tmp_path / "thirdparty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fusewheel.patterns]\ngone = nowhere_at_all:P\ngood = thirdparty:P\nwrong = thirdparty:f\n"
    )
    (tmp_path / "thirdparty.py").write_text(
        "import dataclasses\nfrom fusewheel.compiler.patterns.silu_mul import PATTERN\n"
        "P = dataclasses.replace(PATTERN, name='third', order=-9)\n"
        "def f(): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("FUSEWHEEL_COMPILER_STRICT")
    _installed.cache_clear()
    yield tmp_path
    _installed.cache_clear()
    sys.modules.pop("thirdparty", None)


def test_entry_points(compare: Any, package: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fusewheel.compiler"):
        assert compare(swiglu, _x(3, 4), _x(3, 4)).counts() == {"third": 1}
    left_out = [record.getMessage() for record in caplog.records]
    assert [message.split(" of ")[0] for message in left_out] == [
        "entry point gone = nowhere_at_all:P",
        "entry point wrong = thirdparty:f",
    ]
    with pytest.raises(ValueError, match="'third' is there already"):
        register(dataclasses.replace(OWN, name="third"))


def test_disabled(compare: Any) -> None:
    with disable("silu_mul", "rope") as off:
        assert disabled() == {"silu_mul", "rope"}
        report = compare(swiglu, _x(3, 4), _x(3, 4))
        assert isinstance(off, Disabled)
    (refusal,) = report.refusals
    assert (refusal.pattern, refusal.reason) == (
        "silu_mul",
        "disabled by fusewheel.compiler.disable",
    )
    assert report.counts() == {} and not disabled()
    with disable("silu_mul"):
        assert fusewheel.explain(swiglu, _x(3, 4), _x(3, 4)).refusals[0].reason == refusal.reason


def test_a_smaller_pattern_takes_over(compare: Any) -> None:
    def norm(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(x + r, (4,), w)

    with disable("add_rms_norm"):
        report = compare(norm, _x(3, 4), _x(3, 4), _x(4))
    assert report.counts() == {"rms_norm": 1}


def test_until_it_is_enabled(compare: Any) -> None:
    first, second = disable("silu_mul"), disable("silu_mul")
    first.enable()
    first.enable()
    assert disabled() == {"silu_mul"}
    second.enable()
    assert not disabled()


def test_enabled_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), disable("rope"):
        _ = 1 / 0
    assert not disabled()


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"no pattern is called 'rop', there are .*, rope"):
        disable("rope", "rop")
    with pytest.raises(TypeError, match="a str, not int"):
        disable(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name of a pattern"):
        disable()
    assert not disabled()


def test_threads() -> None:
    """Blocks that overlap: a pattern is off until the last one has ended."""
    barrier = threading.Barrier(4)
    seen: list[frozenset[str]] = []

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            with disable("rope"):
                seen.append(disabled())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {frozenset({"rope"})}
    assert not disabled()


def test_compiled_code_follows(compiled: Any, targets: list[list[Any]]) -> None:
    """The same compiled function, without and with and without the operator."""
    operator, inputs = torch.ops.fusewheel.silu_mul.default, (_x(3, 4), _x(3, 4))
    compiled(*inputs)
    with disable("silu_mul"):
        compiled(*inputs)
        compiled(*inputs)
    compiled(*inputs)
    assert [operator in called for called in targets] == [True, False, True]


def test_compiled_code_follows_registration(compiled: Any, targets: list[list[Any]]) -> None:
    compiled(_x(3, 4), _x(3, 4))
    register(OWN)
    compiled(_x(3, 4), _x(3, 4))
    unregister("own")
    assert len(targets) == 2


def test_other_backends_keep_their_code() -> None:
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm

    function = torch.compile(lambda x: x * 2, backend=backend)
    function(_x(3))
    with disable("rope"):
        function(_x(3))
    assert len(graphs) == 1


def test_an_operation_is_spelled_once() -> None:
    with pytest.raises(ValueError, match=r"silu.* is spelled already, as 'silu'"):
        spell("gelu", "input", functions=(torch.nn.functional.silu,))


def _in_time(function: Callable[[], Any], seconds: float = 5) -> bool:
    """Whether a function that another thread runs ends; it is left behind if it does not."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _switch() -> None:
    with disable("rope"):
        pass


def _register() -> None:
    register(OWN)
    unregister("own")


@pytest.mark.parametrize("change", [_switch, _register])
def test_patterns_change_while_another_thread_compiles(change: Callable[[], None]) -> None:
    """A change waits for the compilation, which may ask meanwhile which patterns there are."""
    compiling = torch._dynamo.convert_frame.compile_lock
    with compiling:
        waiting = threading.Thread(target=change, daemon=True)
        waiting.start()
        waiting.join(1)
        assert waiting.is_alive()
        assert _in_time(disabled) and _in_time(known_patterns)
    waiting.join(60)
    assert not waiting.is_alive()
