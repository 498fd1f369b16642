"""Products of many rows with a weight that is stored as codes or in blocks, and their gradients."""

from __future__ import annotations

import pytest
import torch
from contracts import CONTRACTS
from fusewheel.dispatch.operator import Make
from fusewheel.ops import operators
from fusewheel.ops.linear._blocks import FORMATS
from fusewheel.ops.linear.linear_blocks import random_blocks
from neighbours import assert_call_as_good_as_eager, compute

OPERATORS = {operator.name: operator for operator in operators()}
ROWS, INNER = 100, 512
GROUP = 64


def weight(kind: str, features: int, dtype: torch.dtype) -> tuple[object, ...]:
    """What the operators take after their rows."""
    if kind not in ("int8", "int4"):
        format = FORMATS[kind]
        return random_blocks(Make(), kind, features, INNER // format.weights), format.number
    codes = torch.randint(0, 256, (features, INNER if kind == "int8" else INNER // 2))
    if kind == "int8":
        return (codes - 128).to(torch.int8), Make(dtype)(features).abs() / 64
    scales = Make(dtype)(features, INNER // GROUP).abs() / 8
    return codes.byte(), scales, Make(dtype, seed=1)(features, INNER // GROUP), GROUP


def stem(kind: str) -> str:
    return f"linear_{kind}" if kind.startswith("int") else "linear_blocks"


# In bfloat16 tensor cores take multiples of 8: the products of 136 features end within a tile.
@pytest.mark.parametrize("features", [136, 70])
@pytest.mark.parametrize("kind", ["int8", "int4", "Q6_K", "NF4"])
@pytest.mark.parametrize("backward", [False, True])
def test_many_rows(dtype, kind, backward, features):
    own = OPERATORS[stem(kind) + "_backward" * backward]
    stored = weight(kind, features, dtype)
    if backward:
        arguments = Make(dtype)(ROWS, features), *stored
    else:
        bias = Make(dtype, seed=2)(features)
        rounded = (False,) if stem(kind) != "linear_blocks" else ()
        arguments = Make(dtype)(ROWS, INNER), *stored, bias, *rounded
    assert_call_as_good_as_eager(
        compute, own.overload, own.reference, arguments, kind, contract=CONTRACTS.get(own.name)
    )
