"""Sharding rules: on which pieces of its tensors an operator can run.

A rule is called with an operator's arguments. It reads the shapes of the tensors and the settings,
and yields every `Layout` in which each device can compute its piece alone, for one dimension of a
device mesh. Whole tensors on every device always work and are left out. The rules do not know
`torch.distributed`; `fusewheel.distributed` translates them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

REPLICATE: Literal["replicate"] = "replicate"
"""Every device has the whole tensor."""

PARTIAL: Literal["partial"] = "partial"
"""The tensor is the sum of the tensors of all devices."""

Place = int | Literal["replicate", "partial"]
"""How a tensor is placed: cut into pieces along the dimension of this number, or as above."""


@dataclass(frozen=True)
class Layout:
    """One way to divide an operator's work.

    Attributes:
        inputs: a place for each argument, None for those that are not tensors.
        outputs: a place for each result.
        even: whether all pieces must have the same size.
    """

    inputs: tuple[Place | None, ...]
    outputs: tuple[Place, ...]
    even: bool = False


Rule = Callable[..., Iterator[Layout]]


def is_tensor(argument: Any) -> bool:
    """Whether an argument is a tensor or stands for one, which means that it has a shape."""
    return hasattr(argument, "shape")


def places(arguments: Sequence[Any], where: Mapping[int, Place]) -> tuple[Place | None, ...]:
    """A place for each tensor among the arguments; whole if the argument is not in `where`."""
    return tuple(
        where.get(i, REPLICATE) if is_tensor(argument) else None
        for i, argument in enumerate(arguments)
    )


@dataclass(frozen=True)
class Elementwise:
    """The rule of operators whose operands broadcast: they can be cut along any dimension.

    Attributes:
        outputs: the number of results, all of the broadcast shape.
        sums: placements of the arguments for which the result is a partial sum.
    """

    outputs: int = 1
    sums: tuple[tuple[Place, ...], ...] = ()

    def __call__(self, *arguments: Any) -> Iterator[Layout]:
        """The layouts in which these arguments may be cut."""
        shapes = {i: tuple(a.shape) for i, a in enumerate(arguments) if is_tensor(a)}
        size = torch.broadcast_shapes(*shapes.values())
        for dim in range(-len(size), 0):
            if size[dim] == 1:
                continue
            where: dict[int, Place] = {
                i: len(shape) + dim
                for i, shape in shapes.items()
                if len(shape) >= -dim and shape[dim] != 1
            }
            yield Layout(places(arguments, where), (len(size) + dim,) * self.outputs)
        for inputs in self.sums:
            yield Layout(inputs, (PARTIAL,) * self.outputs)


def row_wise(along: Sequence[int], outputs: Sequence[Literal["rows", "sum"]]) -> Rule:
    """The rule of operators that compute each row alone; the last dimension stays whole.

    Args:
        along: indices of the arguments that have these rows, with or without the last dimension.
        outputs: for each result, `"rows"` if it has values for each row, `"sum"` if it sums over
            the rows.
    """

    def rule(*arguments: Any) -> Iterator[Layout]:
        last = max(len(arguments[i].shape) for i in along) - 1
        for dim in range(last):
            where = dict.fromkeys(along, dim)
            found = tuple(dim if kind == "rows" else PARTIAL for kind in outputs)
            yield Layout(places(arguments, where), found)

    return rule


def linear(
    arguments: Sequence[Any], given: Sequence[int], taken: Mapping[int, Place], even: bool = False
) -> Iterator[Layout]:
    """The layouts of a linear layer: its rows are cut, or its weight, as in tensor parallelism.

    Args:
        arguments: those of the operator; the last dimension of the first is the in features.
        given: indices of the arguments whose first dimension is the out features.
        taken: the places of the other arguments if the in features are cut. The result is a partial
            sum then.
        even: whether the in features can only be cut into pieces of the same size.
    """
    last = len(arguments[0].shape) - 1
    for dim in range(last):
        yield Layout(places(arguments, {0: dim}), (dim,))
    yield Layout(places(arguments, dict.fromkeys(given, 0)), (last,))
    yield Layout(places(arguments, {0: last, **taken}), (PARTIAL,), even)


def linear_backward(
    arguments: Sequence[Any], given: Sequence[int], taken: Mapping[int, Place], even: bool = False
) -> Iterator[Layout]:
    """The layouts of the gradient of a linear layer's input; the first argument is the gradient of
    its result.
    """
    last = len(arguments[0].shape) - 1
    for dim in range(last):
        yield Layout(places(arguments, {0: dim}), (dim,))
    yield Layout(places(arguments, {0: last, **dict.fromkeys(given, 0)}), (PARTIAL,))
    yield Layout(places(arguments, taken), (last,), even)
