"""Where PyTorch's attention is replaced: the table of docs/compiler.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler.cost import attention as cost
from fusewheel.compiler.cost.codegen_gain import _work
from fusewheel.compiler.match.rewrite import rewrite
from fusewheel.compiler.patterns.attention import PATTERN

FULL, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
ALL, CAUSAL, WINDOW = (-1, -1), (-1, 0), (256, 0)
TOKENS = (2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 2047, 2048, 4096)
Pays = Callable[[int], bool]


@pytest.fixture(autouse=True)
def _maker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the table is for processors that are not AMD's."""
    monkeypatch.setenv("FUSEWHEEL_COMPILER_MAKER", "GenuineIntel")


def never(n: int) -> bool:
    return False


def from_(least: int) -> Pays:
    return lambda n: n >= least


AVX2, AVX512, AMX = (False, False), (True, False), (True, True)
# Window, whether a mask is read, dtype, AVX-512 and AMX, where it pays without a gradient, and with
# one.
TABLE: list[tuple[tuple[int, int], bool, torch.dtype, tuple[bool, bool], Pays, Pays]] = [
    (CAUSAL, False, FULL, AMX, from_(128), from_(128)),
    (CAUSAL, False, FULL, AVX2, from_(128), from_(128)),
    (WINDOW, False, FULL, AVX512, from_(128), from_(128)),
    (CAUSAL, False, HALF, AVX512, from_(128), from_(64)),
    (WINDOW, False, HALF, AVX2, from_(128), from_(64)),
    (CAUSAL, False, BRAIN, AVX2, from_(128), from_(64)),
    (CAUSAL, False, BRAIN, AMX, from_(128), from_(64)),
    (WINDOW, False, BRAIN, AMX, from_(128), from_(64)),
    (CAUSAL, False, BRAIN, AVX512, never, from_(64)),
    # 257 keys are an eighth of 2056.
    (WINDOW, False, BRAIN, AVX512, from_(2056), from_(64)),
    ((100, -1), False, BRAIN, AVX512, never, from_(64)),
    (ALL, False, FULL, AMX, never, from_(128)),
    (ALL, False, HALF, AVX512, from_(128), from_(64)),
    (ALL, False, BRAIN, AVX2, from_(128), from_(64)),
    (ALL, False, BRAIN, AVX512, never, from_(64)),
    (ALL, False, BRAIN, AMX, from_(128), from_(64)),
    (CAUSAL, True, FULL, AMX, from_(512), from_(128)),
    (ALL, True, FULL, AVX2, from_(512), from_(128)),
    (ALL, True, HALF, AVX512, from_(512), from_(64)),
    (CAUSAL, True, HALF, AVX2, from_(512), from_(64)),
    (WINDOW, True, BRAIN, AMX, from_(512), from_(64)),
    (WINDOW, True, BRAIN, AVX512, never, from_(64)),
    (ALL, True, BRAIN, AVX512, never, from_(64)),
]


@pytest.mark.parametrize(("window", "masked"), [(ALL, False), (CAUSAL, False), (ALL, True)])
@pytest.mark.parametrize("dtype", [FULL, HALF, BRAIN])
@pytest.mark.parametrize("training", [False, True])
def test_processors_of_amd(
    monkeypatch: pytest.MonkeyPatch,
    window: tuple[int, int],
    masked: bool,
    dtype: torch.dtype,
    training: bool,
) -> None:
    monkeypatch.setenv("FUSEWHEEL_COMPILER_MAKER", "AuthenticAMD")
    for n in TOKENS:
        options = {"training": training, "masked": masked, "materialised": False}
        assert (cost.loss(n, n, window, dtype, **options) is None) == (n >= 64), n


@pytest.mark.parametrize(("window", "masked", "dtype", "has", "forward", "training"), TABLE)
def test_table(
    monkeypatch: pytest.MonkeyPatch,
    window: tuple[int, int],
    masked: bool,
    dtype: torch.dtype,
    has: tuple[bool, bool],
    forward: Pays,
    training: Pays,
) -> None:
    for name, value in zip(("AVX512", "AMX"), has, strict=True):
        monkeypatch.setenv(f"FUSEWHEEL_COMPILER_{name}", str(int(value)))
    for trained, expected in ((False, forward), (True, training)):
        for n in TOKENS:
            options = {"training": trained, "masked": masked, "materialised": False}
            reason = cost.loss(n, n, window, dtype, **options)
            assert (reason is None) == expected(n), (n, reason)
            assert reason is None or str(dtype).removeprefix("torch.") in reason


@pytest.mark.parametrize("dtype", [FULL, HALF, BRAIN], ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_materialised_scores(dtype: torch.dtype, training: bool) -> None:
    options = {"training": training, "masked": True, "materialised": True}
    assert cost.loss(256, 256, ALL, dtype, **options) is None
    reason = cost.loss(255, 4096, CAUSAL, dtype, **options)
    assert reason is not None and "255 tokens" in reason and "below 256 tokens" in reason


def test_a_single_query() -> None:
    options = {"training": False, "masked": False, "materialised": True}
    reason = cost.loss(1, 4096, ALL, FULL, **options)
    assert reason == "a single query, or a single key, is left to PyTorch's attention"


def report_of(function: Any, *shapes: tuple[int, ...], **settings: Any) -> Any:
    """What the pattern says about a call."""
    graph = torch.fx.Graph()
    nodes = []
    for shape in shapes:
        nodes.append(graph.placeholder(f"x{len(nodes)}"))
        nodes[-1].meta["example_value"] = torch.empty(shape, **settings)
    node = graph.call_function(F.scaled_dot_product_attention, tuple(nodes), function)
    values = (n.meta["example_value"] for n in nodes)
    node.meta["example_value"] = F.scaled_dot_product_attention(*values, **function)
    last = graph.call_method("sum", (node,))
    last.meta["example_value"] = node.meta["example_value"].sum()
    graph.output(last)
    return rewrite(torch.fx.GraphModule({}, graph), patterns=[PATTERN])


# Options of the call, heads of keys, the size of values, whether there is a gradient, and whether
# it is replaced at 256 tokens.
SLOW: list[tuple[dict[str, bool], int, int, bool, bool]] = [
    ({}, 4, 8, False, False),
    ({"is_causal": True}, 4, 8, True, True),
    ({"enable_gqa": True}, 2, 8, False, False),
    ({"enable_gqa": True}, 2, 8, True, True),  # PyTorch's kernel has no backward for groups
    ({}, 4, 16, False, True),
]


@pytest.mark.parametrize(("function", "heads", "size", "training", "replaced"), SLOW)
def test_what_pytorch_materialises(
    function: dict[str, bool], heads: int, size: int, training: bool, replaced: bool
) -> None:
    shapes = (1, 4, 256, 8), (1, heads, 256, 8), (1, heads, 256, size)
    report = report_of(function, *shapes, requires_grad=training)
    assert report.counts() == ({"attention": 1} if replaced else {}), report
    assert len(report.refusals) == (not replaced)


def test_work_of_the_operator() -> None:
    """It multiplies as much as the call that it replaces."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.empty(2, 4, 32, 8)
    call = graph.call_function(F.scaled_dot_product_attention, (x, x, x))
    operator = graph.call_function(PATTERN.overload(), (x, x, x, None, None, -1, 0, 1.0, 0.0))
    call.meta["example_value"] = torch.empty(2, 4, 32, 8)
    operator.meta["example_value"] = torch.empty(2, 4, 32, 8), torch.empty(2, 4, 32)
    assert _work(operator, 0).flops == _work(call, 0).flops == 4.0 * 2 * 4 * 32 * 32 * 8
