"""Hands the operators' sharding rules to DTensor, whose own registry this imports.

`torch.distributed.tensor.experimental.register_sharding` would do for most operators. It does not
pass on arguments left at their default, takes operators that differ in a flag or in which optional
tensor is absent for one and the same, and lets a tensor that is written be redistributed to a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._op_schema import (
    OpSchema,
    OpStrategy,
    RuntimeSchemaInfo,
)
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
from torch.distributed.tensor.placement_types import (
    Partial,
    Placement,
    Replicate,
    Shard,
    _StridedShard,
)

from fusewheel._operator import Operator
from fusewheel._sharding import PARTIAL, REPLICATE, Layout, Place, is_tensor, places

Cut = Callable[[int], Placement]


def register_all(operators: Iterable[Operator]) -> None:
    """Registers the rules of those that have one."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    for operator in operators:
        if operator.sharding is not None:
            propagator.register_op_strategy(
                operator.overload, partial(strategies, operator), _cache_key(operator)
            )


def _cache_key(operator: Operator) -> RuntimeSchemaInfo:
    """From which argument on all of them decide what is found in DTensor's cache.

    Tensors always do. The numbers before the first flag change nothing but values.
    """
    for index, argument in enumerate(operator.overload._schema.arguments):
        if str(argument.type) not in ("Tensor", "float"):
            return RuntimeSchemaInfo(index)
    return RuntimeSchemaInfo()


def strategies(operator: Operator, schema: OpSchema) -> OpStrategy:
    """Every way to run `operator` on a mesh, and what redistributing its arguments costs."""
    arguments = _arguments(operator, schema)
    mesh = schema.get_mesh_from_args()
    outputs = len(operator.overload._schema.returns)
    listed = [
        [*map(cut, layout.outputs), *(None if p is None else cut(p) for p in layout.inputs)]
        for layout, cut in _candidates(operator, arguments, mesh.size())
    ]
    # Tensors at their default are None, which has no place.
    given = outputs + len(schema.args_schema)
    found = expand_to_full_mesh_op_strategy(
        mesh, schema, [row[:given] for row in listed], input_index=outputs
    )
    if operator.mutates is None:
        return found
    return _in_place(operator, arguments, found)


def _arguments(operator: Operator, schema: OpSchema) -> tuple[Any, ...]:
    """All arguments, tensors as their specifications."""
    declared = operator.overload._schema.arguments
    given = (
        a.strategies[0].output_spec if isinstance(a, OpStrategy) else a for a in schema.args_schema
    )
    return *given, *(a.default_value for a in declared[len(schema.args_schema) :])


def _candidates(
    operator: Operator, arguments: tuple[Any, ...], pieces: int
) -> Iterator[tuple[Layout, Callable[[Place], Placement]]]:
    whole = Layout(places(arguments, {}), (REPLICATE,) * len(operator.overload._schema.returns))
    yield whole, partial(_placement, Shard)
    # A flattened dimension is cut in strides; what can be cut can be cut so. In the order of the
    # arguments, because all processes must choose alike.
    strides = dict.fromkeys(
        p.split_factor
        for a in arguments
        if is_tensor(a)
        for p in a.placements
        if isinstance(p, _StridedShard)
    )
    cuts: list[Cut] = [Shard, *(partial(_StridedShard, split_factor=n) for n in strides)]
    assert operator.sharding is not None
    for layout in operator.sharding(*arguments):
        if layout.even and not _divides(layout, arguments, pieces):
            continue
        for cut in cuts[:1] if layout.even else cuts:
            yield layout, partial(_placement, cut)


def _placement(cut: Cut, place: Place) -> Placement:
    if place == REPLICATE:
        return Replicate()
    if place == PARTIAL:
        return Partial()
    assert isinstance(place, int)
    return cut(place)


def _divides(layout: Layout, arguments: tuple[Any, ...], pieces: int) -> bool:
    return all(
        argument.shape[place] % pieces == 0
        for place, argument in zip(layout.inputs, arguments, strict=True)
        if isinstance(place, int)
    )


def _in_place(operator: Operator, arguments: tuple[Any, ...], found: OpStrategy) -> OpStrategy:
    """Leaves those that keep what is written where it is: a copy would be written in vain."""
    assert operator.mutates is not None
    written = arguments[operator.mutates]
    position = sum(map(is_tensor, arguments[: operator.mutates]))
    kept = [s for s in found.strategies if s.input_spec(position).placements == written.placements]
    if not kept:
        name = operator.overload._schema.arguments[operator.mutates].name
        raise RuntimeError(
            f"{operator.name}: {name} is written, so it must be replicated or cut along a "
            f"dimension that the operator works on in pieces, got {written.placements}"
        )
    return OpStrategy(kept)
