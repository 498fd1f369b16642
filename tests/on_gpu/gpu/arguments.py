"""An operator's samples on a GPU, and what it makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from fusewheel.dispatch.operator import Make, Operator
from on_gpu.carried import Carrier
from torch import Tensor

Arguments = tuple[Any, ...]


def samples(operator: Operator, device: str = "cuda") -> Iterator[Arguments]:
    """The operator's float32 samples, in that GPU's memory."""
    for arguments in operator.samples(Make(torch.float32)):
        carrier = Carrier(device)
        yield tuple(carrier.there(argument) for argument in arguments)


def tensors(values: Any) -> list[Tensor]:
    """Those among arguments or results."""
    values = values if isinstance(values, tuple | list) else (values,)
    return [value for value in values if isinstance(value, Tensor)]


def called(operator: Operator, arguments: Arguments) -> list[Tensor]:
    """The results, or the argument that the operator writes to."""
    result = operator.overload(*arguments)
    return tensors(result if operator.mutates is None else arguments[operator.mutates])


def assert_same_bits(got: list[Tensor], wanted: list[Tensor]) -> None:
    """Fails if tensors differ in anything but that NaN is NaN."""
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=0, atol=0, equal_nan=True)
