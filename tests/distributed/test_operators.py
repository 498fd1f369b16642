"""Every operator on pieces of its tensors, in every layout its rule gives, is what it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import pytest
import torch
from fusewheel import ops
from fusewheel._operator import Make, Operator
from fusewheel._sharding import PARTIAL, REPLICATE, Layout, Place, places
from group import Check, failures
from oracle import assert_as_good_as_eager, tensors_of
from torch import Tensor

SIZES = (2, 4)


@cache
def results(size: int) -> dict[str, str]:
    return failures(__file__, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [operator.name for operator in ops.operators()])
def test_pieces(name: str, size: int):
    found = results(size)
    assert name in found, f"not reached: {[text for text in found.values() if text]}"
    assert not found[name], found[name]


def checks(size: int) -> Iterator[Check]:
    from torch.distributed.tensor import init_device_mesh

    mesh = init_device_mesh("cpu", (size,))
    for operator in ops.operators():
        yield operator.name, partial(check, operator, mesh)


def check(operator: Operator, mesh: Any) -> None:
    assert operator.sharding is not None
    for index, arguments in enumerate(operator.samples(Make(torch.float64, seed=61))):
        whole = Layout(places(arguments, {}), (REPLICATE,) * outputs_of(operator))
        expected = run(operator, arguments)
        for layout in (whole, *operator.sharding(*arguments)):
            if possible(layout, arguments, mesh.size()):
                what = f"{operator.name}, sample {index}, {layout}"
                check_layout(operator, mesh, arguments, layout, expected, what)
                if operator.function is not None:
                    check_gradients(operator, mesh, arguments, layout, what)


def outputs_of(operator: Operator) -> int:
    return len(operator.overload._schema.returns)


def possible(layout: Layout, arguments: tuple, pieces: int) -> bool:
    cut = [
        a.shape[place]
        for place, a in zip(layout.inputs, arguments, strict=True)
        if isinstance(place, int)
    ]
    return all(size % pieces == 0 if layout.even else size >= pieces for size in cut)


def check_layout(operator, mesh, arguments, layout, expected, what) -> None:
    from torch.distributed.tensor.debug import CommDebugMode

    given = tuple(
        distribute(a, mesh, place) if isinstance(a, Tensor) else a
        for a, place in zip(arguments, layout.inputs, strict=True)
    )
    with CommDebugMode() as communication:
        got = run(operator, given)
    assert communication.get_total_counts() == 0, f"{what}: {communication.get_comm_counts()}"
    if operator.mutates is None:
        found = [o.placements for o in got]
        assert found == [(placement(p),) for p in layout.outputs], f"{what}: {found}"
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert_as_good_as_eager(a.full_tensor(), b, b, f"{what}, output {k}")


def check_gradients(operator, mesh, arguments, layout, what) -> None:
    from torch.distributed.tensor import Replicate, distribute_tensor

    def spread(seed, output):
        kinds = [Replicate() if p.is_partial() else p for p in output.placements]
        return distribute_tensor(seed, mesh, kinds, src_data_rank=None)

    given = tuple(
        distribute(a, mesh, place) if isinstance(a, Tensor) else a
        for a, place in zip(arguments, layout.inputs, strict=True)
    )
    got = gradients(operator, given, spread)
    expected = gradients(operator, arguments, lambda seed, output: seed)
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert (a is None) == (b is None), f"{what}, gradient {k}"
        if b is not None:
            assert_as_good_as_eager(a.full_tensor(), b, b, f"{what}, gradient {k}")


def gradients(operator: Operator, arguments: tuple, seed: Any) -> tuple[Tensor, ...]:
    wanted = [
        i
        for i, a in enumerate(arguments)
        if isinstance(a, Tensor) and a.is_floating_point() and i != operator.mutates
    ]
    leaves = tuple(
        a.detach().requires_grad_(i in wanted) if isinstance(a, Tensor) else a
        for i, a in enumerate(arguments)
    )
    outputs = [o for o in run(operator, leaves) if o.requires_grad]
    if not outputs:
        return ()
    make = Make(torch.float64, seed=62)
    seeds = [seed(make(*o.shape), o) for o in outputs]
    return torch.autograd.grad(outputs, [leaves[i] for i in wanted], seeds, allow_unused=True)


def run(operator: Operator, arguments: tuple) -> tuple[Tensor, ...]:
    if operator.mutates is None:
        return tensors_of(operator.overload(*arguments))
    arguments = tuple(a.clone() if isinstance(a, Tensor) else a for a in arguments)
    operator.overload(*arguments)
    return (arguments[operator.mutates],)


def placement(place: Place) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if place == REPLICATE:
        return Replicate()
    return Partial() if place == PARTIAL else Shard(place)


def distribute(tensor: Tensor, mesh: Any, place: Place) -> Tensor:
    """A tensor in that place; a sum of different parts where it is partial."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if place != PARTIAL:
        return distribute_tensor(tensor, mesh, [placement(place)], src_data_rank=None)
    share = tensor / mesh.size()
    return DTensor.from_local(share, mesh, [placement(place)], run_check=False)
