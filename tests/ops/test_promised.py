"""What a fake promises is asked for without memory, and kept where the reference runs instead."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from fusewheel.dispatch.operator import Make, Operator
from fusewheel.dispatch.promise import promise
from fusewheel.dispatch.register import _fallback
from fusewheel.dispatch.vmap import Batch, one_call
from fusewheel.ops import operators
from oracle import tensors_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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


class NoMemory(TorchDispatchMode):
    """Fails if an operator returns a tensor that has memory."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [t.device.type for t in tree_leaves(result) if isinstance(t, Tensor)]
        assert set(made) <= {"meta"}, f"{func} made a tensor on {made}"
        return result


def test_a_promise_takes_no_memory(operator: Operator):
    for arguments in operator.samples(Make(seed=64)):
        with NoMemory():
            promise(operator)(*arguments)


def test_a_promise_of_something_huge_is_free():
    """An expanded argument of an exabyte, of which the result would have to be made."""
    x = torch.ones(1, 1).expand(2**28, 2**30)
    overload = torch.ops.fusewheel.silu_mul.default
    operator = next(o for o in operators() if o.overload is overload)
    assert promise(operator)(x, x).shape == x.shape
    batch = Batch(2, (x.expand(2, *x.shape), x), (0, None))
    assert one_call(operator, batch).places == (0,)


def test_vmap_asks_for_shapes_without_memory(operator: Operator):
    for arguments in operator.samples(Make(seed=62)):
        own, devices = watched(operator)
        dims = tuple(0 if i == 0 else None for i in range(len(arguments)))
        samples = torch.stack([arguments[0].detach()] * 2)
        one_call(own, Batch(2, (samples, *arguments[1:]), dims))
        assert set(devices) <= {"meta"}
