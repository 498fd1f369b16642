"""Registers the operators' sharding rules with DTensor, through DTensor's own registry.

`torch.distributed.tensor.experimental.register_sharding` has three gaps: it does not pass on
arguments that have their default; its cache confuses calls that differ in a flag or in an absent
optional tensor; and it may redistribute a tensor that is written to, so that the write goes to a
copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torch.distributed.tensor.placement_types import (
    Partial,
    Placement,
    Replicate,
    Shard,
)

from fusewheel._torch import dtensor
from fusewheel._torch.dtensor import (
    OpSchema,
    OpStrategy,
    RuntimeSchemaInfo,
    StridedShard,
    expand_to_full_mesh_op_strategy,
)
from fusewheel.dispatch.operator import Operator
from fusewheel.dispatch.sharding import PARTIAL, REPLICATE, Layout, Place, is_tensor, places

Cut = Callable[[int], Placement]


def register_all(operators: Iterable[Operator]) -> None:
    """Registers the sharding rules of all operators that have one."""
    for operator in operators:
        if operator.sharding is not None:
            dtensor.register(operator.overload, partial(strategies, operator), _cache_key(operator))


def _cache_key(operator: Operator) -> RuntimeSchemaInfo:
    """The argument from which on all arguments are part of the key of DTensor's cache.

    Tensors always are. The numbers before the first flag only change values.
    """
    for index, argument in enumerate(operator.overload._schema.arguments):
        if str(argument.type) not in ("Tensor", "float"):
            return RuntimeSchemaInfo(index)
    return RuntimeSchemaInfo()


def strategies(operator: Operator, schema: OpSchema) -> OpStrategy:
    """All ways to run `operator` on a mesh, with the costs of redistributing its arguments."""
    arguments = _arguments(operator, schema)
    mesh = schema.get_mesh_from_args()
    outputs = len(operator.overload._schema.returns)
    listed = [
        [*map(cut, layout.outputs), *(None if p is None else cut(p) for p in layout.inputs)]
        for layout, cut in _candidates(operator, arguments, mesh.size())
    ]
    # A tensor argument that has its default is None and has no placement.
    given = outputs + len(schema.args_schema)
    found = expand_to_full_mesh_op_strategy(
        mesh, schema, [row[:given] for row in listed], input_index=outputs
    )
    if operator.mutates is None:
        return found
    return _in_place(operator, arguments, found)


def _arguments(operator: Operator, schema: OpSchema) -> tuple[Any, ...]:
    """All arguments, with specifications in place of tensors."""
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
    # A flattened dimension is cut in strides; whatever can be cut can be cut in this way too. The
    # order is that of the arguments, because all processes must choose the same.
    strides = dict.fromkeys(
        p.split_factor
        for a in arguments
        if is_tensor(a)
        for p in a.placements
        if isinstance(p, StridedShard)
    )
    cuts: list[Cut] = [Shard, *(partial(StridedShard, split_factor=n) for n in strides)]
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
    """Keeps the ways that do not redistribute the written tensor, because the write would go to a
    copy.
    """
    assert operator.mutates is not None
    written = arguments[operator.mutates]
    position = sum(map(is_tensor, arguments[: operator.mutates]))
    kept = [s for s in found.strategies if s.input_spec(position).placements == written.placements]
    if not kept:
        name = operator.overload._schema.arguments[operator.mutates].name
        raise RuntimeError(
            f"{operator.name}: {name} is written to, so it must be replicated or cut along a "
            f"dimension that can be cut for this operator, got {written.placements}"
        )
    return OpStrategy(kept)
