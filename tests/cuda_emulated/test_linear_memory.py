"""How much memory a linear layer takes for its weight in another form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fusewheel import ops
from oracle import assert_as_good_as_eager
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

ROWS, FEATURES, COLUMNS, GROUP = 20, 4160, 4096, 128
PANEL = 32 << 20
OPERATORS = {operator.name: operator for operator in ops.operators()}


def allocations(call: Callable[[], Tensor]) -> tuple[Tensor, list[int]]:
    """What a call returns, and the bytes of each allocation on the way."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = call()
    events = profiled.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return result, [size for size in sizes if size > 0]


def weight(kind: str) -> list[Tensor | int]:
    """Codes, scales and what else there is."""
    generator = torch.Generator().manual_seed(1)
    scales = (torch.rand(FEATURES, COLUMNS // GROUP, generator=generator) + 0.5) / 64
    if kind == "int8":
        codes = torch.randint(-128, 128, (FEATURES, COLUMNS), generator=generator)
        return [codes.to(torch.int8), scales]
    codes = torch.randint(0, 256, (FEATURES, COLUMNS // 2), generator=generator)
    return [codes.to(torch.uint8), scales, scales * -7.5, GROUP]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["int8", "int4", "int8_backward", "int4_backward"])
def test_a_weight_is_decoded_in_panels(name: str, dtype: torch.dtype):
    assert FEATURES * COLUMNS * 4 > 2 * PANEL
    operator = OPERATORS[f"linear_{name}"]
    rest: list[Tensor | int | bool | None] = [*weight(name.partition("_")[0])]
    if name.endswith("backward"):
        x = torch.randn(ROWS, FEATURES, dtype=dtype)
    else:
        x = torch.randn(ROWS, COLUMNS, dtype=dtype)
        rest += [torch.linspace(-1, 1, FEATURES), False]
    got, sizes = allocations(lambda: operator.overload(x, *rest))
    if dtype == torch.bfloat16 and not name.endswith("backward"):
        assert sizes == [got.nbytes]  # tensor cores get what is decoded
    else:
        # Beside a panel there are the result, and the activations in float32.
        assert 0.9 * PANEL < max(sizes) <= PANEL
        assert sum(sizes) < PANEL + (4 << 20)
    exact = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in rest]
    want = operator.reference(x.double(), *exact)
    assert_as_good_as_eager(got, operator.reference(x, *rest), want)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [16, 128])
def test_a_weight_in_a_half_type_is_not_converted(rows: int, half: torch.dtype):
    x, stored = torch.randn(rows, 64), torch.randn(48, 64).to(half)
    got, sizes = allocations(lambda: OPERATORS["linear"].overload(x, stored, None))
    assert sizes == [got.nbytes]
