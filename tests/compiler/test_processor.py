"""The rules that look at the processor, tried on processors that are not there."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler import Report, rewrite
from fusewheel.compiler.cost import processor
from fusewheel.compiler.patterns.linear import PATTERN

AMD, INTEL = "AuthenticAMD", "GenuineIntel"
AVX512, AMX, MAKER, MKL = (
    f"FUSEWHEEL_COMPILER_{name}" for name in ("AVX512", "AMX", "MAKER", "MKL")
)
ROWS = (1, 2, 4, 5, 15, 16, 63, 64, 511, 512)
BRAIN, HALF, FLOAT32 = (torch.bfloat16,), (torch.float16,), (torch.float32,)
BOTH = BRAIN + HALF

Choose = Callable[..., None]


@pytest.fixture(autouse=True)
def _read_again(fresh: None) -> Iterator[None]:
    forget = processor._maker.cache_clear
    forget()
    yield
    forget()


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Stands for a processor and its libraries."""

    def set_all(
        maker: str = INTEL, avx512: bool = False, amx: bool = False, mkl: bool = True
    ) -> None:
        monkeypatch.setenv(MAKER, maker)
        monkeypatch.setenv(AVX512, str(int(avx512)))
        monkeypatch.setenv(AMX, str(int(amx)))
        monkeypatch.setenv(MKL, str(int(mkl)))

    return set_all


def layer(rows: int, dtype: torch.dtype, trained: bool) -> Report:
    """What becomes of a linear layer."""
    graph = torch.fx.Graph()
    operands = []
    for size in ((rows, 64), (1024, 64)):
        operands.append(graph.placeholder(f"x{len(operands)}"))
        operands[-1].meta["example_value"] = torch.ones(size, dtype=dtype).requires_grad_(trained)
    node = graph.call_function(F.linear, tuple(operands))
    node.meta["example_value"] = F.linear(*(x.meta["example_value"] for x in operands))
    graph.output(node)
    return rewrite(torch.fx.GraphModule({}, graph), patterns=[PATTERN])


# The table of docs/compiler.md: maker, AVX-512 and AMX, dtypes, and the rows that are replaced,
# without a gradient and with one.
TABLE = [
    (INTEL, (False, False), BOTH, lambda n: True, lambda n: True),
    (AMD, (False, False), BOTH, lambda n: True, lambda n: True),
    (INTEL, (True, False), BRAIN, lambda n: False, lambda n: False),
    (INTEL, (True, False), HALF, lambda n: True, lambda n: True),
    (AMD, (True, False), BRAIN, lambda n: n <= 4, lambda n: False),
    (AMD, (True, False), HALF, lambda n: True, lambda n: True),
    (INTEL, (True, True), BOTH, lambda n: n <= 4, lambda n: False),
    (AMD, (True, True), BOTH, lambda n: n <= 4, lambda n: False),
    (INTEL, (True, True), FLOAT32, lambda n: 2 <= n <= 4, lambda n: False),
    (AMD, (True, False), FLOAT32, lambda n: True, lambda n: n >= 16),
    (AMD, (False, False), FLOAT32, lambda n: n <= 4 or n >= 64, lambda n: n >= 512),
    (INTEL, (True, False), FLOAT32, lambda n: 2 <= n <= 4, lambda n: False),
    (INTEL, (False, False), FLOAT32, lambda n: 2 <= n <= 4, lambda n: False),
    ("", (False, False), FLOAT32, lambda n: 2 <= n <= 4, lambda n: False),
]


@pytest.mark.parametrize(("maker", "level", "dtypes", "forward", "training"), TABLE)
def test_linear_layers(
    choose: Choose,
    maker: str,
    level: tuple[bool, bool],
    dtypes: tuple[torch.dtype, ...],
    forward: Callable[[int], bool],
    training: Callable[[int], bool],
) -> None:
    choose(maker or "another", *level)
    for dtype in dtypes:
        for trained, expected in ((False, forward), (True, training)):
            found = [rows for rows in ROWS if layer(rows, dtype, trained).count("linear")]
            assert found == [rows for rows in ROWS if expected(rows)], (dtype, trained)


def test_without_mkl_float32_is_left_alone(choose: Choose) -> None:
    for maker in (AMD, INTEL):
        for avx512 in (False, True):
            choose(maker, avx512, mkl=False)
            for rows in ROWS:
                assert not layer(rows, torch.float32, False).count()
    assert "only MKL" in layer(2, torch.float32, False).refusals[0].reason


def test_reasons(choose: Choose) -> None:
    choose(INTEL)
    assert "one row in float32" in layer(1, torch.float32, False).refusals[0].reason
    choose(INTEL, avx512=True)
    (refusal,) = layer(1, torch.bfloat16, False).refusals
    assert refusal.reason == "PyTorch's own torch.bfloat16 product is fast on this CPU"


@pytest.mark.parametrize(
    ("capability", "wide"),
    [
        ("NO AVX", False),
        ("DEFAULT", False),
        ("AVX2", False),
        ("AVX512", True),
        ("SVE256", True),
        ("Z VECTOR", True),
    ],
)
def test_instructions(monkeypatch: pytest.MonkeyPatch, capability: str, wide: bool) -> None:
    monkeypatch.delenv(AVX512, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert processor.has_avx512() == wide
    for asked in (False, True):
        monkeypatch.setenv(AVX512, str(int(asked)))
        assert processor.has_avx512() == asked


def test_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MKL, raising=False)
    for found in (False, True):
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda found=found: found)
        assert processor.has_mkl() == found
    monkeypatch.setenv(MKL, "0")
    assert not processor.has_mkl()


@pytest.mark.parametrize(
    ("lines", "maker"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: x\n", AMD),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", ""),
    ],
)
def test_maker(monkeypatch: pytest.MonkeyPatch, lines: str, maker: str) -> None:
    monkeypatch.delenv(MAKER, raising=False)
    monkeypatch.setattr(Path, "read_text", lambda _: lines)
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert processor.maker() == maker
    monkeypatch.setenv(MAKER, INTEL)
    assert processor.maker() == INTEL


def test_maker_where_there_is_no_such_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> str:
        raise OSError

    monkeypatch.delenv(MAKER, raising=False)
    monkeypatch.setattr(Path, "read_text", fail)
    described = "AMD64 Family 25 Model 17 Stepping 1, AuthenticAMD"
    monkeypatch.setattr(platform, "processor", lambda: described)
    assert processor.maker() == AMD


@pytest.mark.parametrize("name", [AVX512, MKL])
def test_another_value_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "yes")
    with pytest.raises(ValueError, match=f"{name} must be 0 or 1, got 'yes'"):
        processor.facts()


def test_an_error_is_not_a_pattern_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns that fail are skipped with a warning; a wrong variable is the user's to mend."""
    monkeypatch.delenv("FUSEWHEEL_COMPILER_STRICT")
    monkeypatch.setenv(AVX512, "yes")
    with pytest.raises(ValueError, match="must be 0 or 1"):
        layer(2, torch.float32, False)


@pytest.mark.parametrize("amx", [False, True])
def test_all_facts(choose: Choose, monkeypatch: pytest.MonkeyPatch, amx: bool) -> None:
    choose(AMD, avx512=True, mkl=False)
    monkeypatch.setenv("FUSEWHEEL_COMPILER_AMX", str(int(amx)))
    assert processor.facts() == (True, amx, AMD, False)


def test_amx_needs_avx512(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held to AVX2, PyTorch and the kernels leave AMX alone too."""
    monkeypatch.delenv("FUSEWHEEL_COMPILER_AMX", raising=False)
    choose(avx512=False)
    assert not processor.has_amx()
