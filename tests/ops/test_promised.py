"""What a fake promises is asked for without memory, and kept where the reference runs instead."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from fusewheel.dispatch.operator import Make, Operator
from fusewheel.dispatch.promise import promise
from fusewheel.dispatch.register import _fallback
from fusewheel.dispatch.vmap import Batch, one_call
from oracle import tensors_of
from torch import Tensor


def watched(operator: Operator) -> tuple[Operator, list[str]]:
    """The operator with a fake that notes on which devices its tensors were."""
    devices: list[str] = []

    def fake(*arguments: Any) -> Any:
        devices.extend(a.device.type for a in arguments if isinstance(a, Tensor))
        return operator.fake(*arguments)

    return dataclasses.replace(operator, fake=fake), devices


def test_the_reference_of_a_device_without_kernels_has_the_strides_of_the_fake(operator: Operator):
    for arguments in operator.samples(Make(seed=61)):
        if operator.mutates is not None:
            continue
        own, devices = watched(operator)
        got, want = (tensors_of(f(*arguments)) for f in (_fallback(own), operator.reference))
        assert set(devices) == {"meta"}
        promised = tensors_of(promise(operator)(*arguments))
        assert [r.stride() for r in got] == [r.stride() for r in promised]
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def test_vmap_asks_for_shapes_without_memory(operator: Operator):
    for arguments in operator.samples(Make(seed=62)):
        own, devices = watched(operator)
        dims = tuple(0 if i == 0 else None for i in range(len(arguments)))
        samples = torch.stack([arguments[0].detach()] * 2)
        one_call(own, Batch(2, (samples, *arguments[1:]), dims))
        assert set(devices) <= {"meta"}
