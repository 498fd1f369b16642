"""Every operator on pieces of its tensors, in every layout its rule gives, is what it is whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from fusewheel import ops
from fusewheel.dispatch.operator import Make, Operator
from fusewheel.dispatch.sharding import PARTIAL, REPLICATE, Layout, Place, places
from group import SIZE, Check, in_turn
from nightly import NIGHTLY
from oracle import assert_program_as_good_as_eager, tensors_of
from torch import Tensor

pytestmark = pytest.mark.long

SAMPLES = 2
"""Samples of each operator in pieces; the night compares eight."""
GRADIENTS = 2
"""Samples whose gradients are compared."""
LARGEST = 4000
"""Elements of the sample whose second derivatives are."""
FOUR_PIECES, ANY_PLACEMENT = 0, 1
"""Which fifth of the operators a change tries in groups of four."""


def in_fifth(turn: int) -> list[Operator]:
    """Every fifth operator: what four processes do together takes long."""
    return list(ops.operators())[turn::5]


def not_in_fifth(turn: int) -> list[Operator]:
    """All others."""
    return [operator for operator in ops.operators() if operator not in in_fifth(turn)]


def names_in_fifth(turn: int) -> list[Any]:
    """The names of all operators; the night takes those that are not in this fifth."""
    chosen = in_fifth(turn)
    return [
        pytest.param(operator.name, marks=() if operator in chosen else NIGHTLY)
        for operator in ops.operators()
    ]


@pytest.mark.parametrize("name", [operator.name for operator in ops.operators()])
def test_two_pieces(name: str, passed):
    passed(f"{name}, 2")


@pytest.mark.parametrize("name", names_in_fifth(FOUR_PIECES))
def test_four_pieces(name: str, passed):
    passed(f"{name}, 4")


@NIGHTLY
@pytest.mark.parametrize("name", [operator.name for operator in ops.operators()])
def test_pieces_of_more_samples(name: str, passed):
    passed(f"{name}, more samples")


@pytest.mark.parametrize("name", names_in_fifth(ANY_PLACEMENT))
def test_any_placement(name: str, passed):
    passed(f"{name}, any")


@NIGHTLY
@pytest.mark.parametrize("name", [operator.name for operator in ops.operators()])
def test_every_placement(name: str, passed):
    passed(f"{name}, every")


@pytest.mark.parametrize("name", [operator.name for operator in ops.operators()])
def test_second_derivatives(name: str, passed):
    passed(f"{name}, second")


def meshes() -> tuple[Any, Any]:
    """A row of all processes, and two rows of which one is "inner"."""
    from torch.distributed.tensor import init_device_mesh

    rows = init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("outer", "inner"))
    return init_device_mesh("cpu", (SIZE,)), rows


def checks_of_all(four: list[Operator], any_placement: list[Operator]) -> Iterator[Check]:
    """Those in which all processes take part, for each of these operators."""
    row, rows = meshes()
    for operator in four:
        # A group of four meets one sample, to save time.
        yield f"{operator.name}, 4", partial(check, operator, row, 1)
    for operator in any_placement:
        yield f"{operator.name}, any", partial(check_any, operator, rows)


def checks() -> Iterator[Check]:
    yield from checks_of_all(in_fifth(FOUR_PIECES), in_fifth(ANY_PLACEMENT))
    two = meshes()[1]["inner"]
    yield from in_turn((f"{o.name}, 2", partial(check, o, two, SAMPLES)) for o in ops.operators())
    yield from in_turn(
        (f"{o.name}, second", partial(check_second, o, two)) for o in ops.operators()
    )


def checks_at_night() -> Iterator[Check]:
    yield from checks_of_all(not_in_fifth(FOUR_PIECES), not_in_fifth(ANY_PLACEMENT))
    rows = meshes()[1]
    yield from in_turn(
        (f"{o.name}, more samples", partial(check, o, rows["inner"], 8)) for o in ops.operators()
    )
    for operator in ops.operators():
        yield f"{operator.name}, every", partial(check_any, operator, rows, every=True)


def check(operator: Operator, mesh: Any, count: int) -> None:
    assert operator.sharding is not None
    samples = operator.samples(Make(torch.float64, seed=61))
    for index, arguments in enumerate(itertools.islice(samples, count)):
        whole = Layout(places(arguments, {}), (REPLICATE,) * outputs_of(operator))
        expected = run(operator, arguments)
        for layout in (whole, *operator.sharding(*arguments)):
            if possible(layout, arguments, mesh.size()):
                what = f"{operator.name}, sample {index}, {layout}"
                check_layout(operator, mesh, arguments, layout, expected, what)
                if operator.function is not None and index < GRADIENTS:
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
        assert_program_as_good_as_eager(a.full_tensor(), b, b, f"{what}, output {k}")


def check_gradients(operator, mesh, arguments, layout, what) -> None:
    from torch.distributed.tensor import Replicate, distribute_tensor

    def spread(seed, output):
        kinds = [Replicate() if p.is_partial() else p for p in output.placements]
        return distribute_tensor(seed, mesh, kinds, src_data_rank=None)

    given = tuple(
        distribute(a, mesh, place) if isinstance(a, Tensor) else a
        for a, place in zip(arguments, layout.inputs, strict=True)
    )
    got, _ = gradients(operator, given, spread)
    expected, _ = gradients(operator, arguments, lambda seed, output: seed)
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert (a is None) == (b is None), f"{what}, gradient {k}"
        if b is not None:
            assert_program_as_good_as_eager(a.full_tensor(), b, b, f"{what}, gradient {k}")


def gradients(
    operator: Operator, arguments: tuple, seed: Any, create_graph: bool = False
) -> tuple[tuple[Tensor | None, ...], list[Tensor]]:
    """Of random multiples of the outputs, and the tensors they belong to."""
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
    inputs = [leaves[i] for i in wanted]
    if not outputs:
        return (), inputs
    make = Make(torch.float64, seed=62)
    seeds = [seed(make(*o.shape), o) for o in outputs]
    found = torch.autograd.grad(
        outputs, inputs, seeds, allow_unused=True, create_graph=create_graph
    )
    return found, inputs


def check_second(operator: Operator, mesh: Any) -> None:
    """Derivatives of the gradients, of a small sample."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    def spread(seed, output):
        return distribute_tensor(seed, mesh, [Replicate()], src_data_rank=None)

    samples = operator.samples(Make(torch.float64, seed=64))
    arguments = next(a for a in samples if 8 <= elements(a) <= LARGEST)
    whole = Layout(places(arguments, {}), (REPLICATE,) * outputs_of(operator))
    expected = second_derivatives(operator, arguments, lambda seed, output: seed)
    for layout in (whole, *operator.sharding(*arguments)):
        if possible(layout, arguments, mesh.size()):
            what = f"{operator.name}, {layout}"
            given = tuple(
                distribute(a, mesh, place) if isinstance(a, Tensor) else a
                for a, place in zip(arguments, layout.inputs, strict=True)
            )
            got = second_derivatives(operator, given, spread)
            for k, (a, b) in enumerate(zip(got, expected, strict=True)):
                assert (a is None) == (b is None), f"{what}, gradient {k}"
                if b is not None:
                    assert_program_as_good_as_eager(a.full_tensor(), b, b, f"{what}, gradient {k}")


def elements(arguments: tuple) -> int:
    return sum(a.numel() for a in arguments if isinstance(a, Tensor))


def second_derivatives(operator: Operator, arguments: tuple, seed: Any) -> tuple:
    first, wanted = gradients(operator, arguments, seed, create_graph=True)
    first = [g for g in first if g is not None and g.requires_grad]
    if not first:
        return ()
    make = Make(torch.float64, seed=65)
    seeds = [seed(make(*g.shape), g) for g in first]
    return torch.autograd.grad(first, wanted, seeds, allow_unused=True)


def check_any(operator: Operator, mesh: Any, every: bool = False) -> None:
    """One argument cut along any dimensions, over a mesh of two: right, or refused.

    Of the two ways to cut a dimension the dimensions take turns, unless `every` one is tried.
    """
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    arguments = next(iter(operator.samples(Make(torch.float64, seed=63))))
    expected = run(operator, arguments)
    for index, argument in enumerate(arguments):
        for dim in range(argument.dim()) if isinstance(argument, Tensor) else ():
            cuts = ([Shard(dim), Replicate()], [Shard(0), Shard(dim)])
            for cut in cuts if every else (cuts[dim % 2],):
                given = tuple(
                    distribute_tensor(
                        a, mesh, cut if i == index else [Replicate()] * 2, src_data_rank=None
                    )
                    if isinstance(a, Tensor)
                    else a
                    for i, a in enumerate(arguments)
                )
                what = f"{operator.name}, argument {index}, {cut}"
                try:
                    got = run(operator, given)
                except RuntimeError as error:
                    assert index == operator.mutates and "is written" in str(error), what
                    continue
                for a, b in zip(got, expected, strict=True):
                    assert_program_as_good_as_eager(a.full_tensor(), b, b, what)


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
