"""How an operator runs on pieces of its tensors: the rules that declarations name.

A rule is called with an operator's arguments, of which it reads the shapes of the tensors and the
settings, and yields every `Layout` in which the pieces can be computed apart. It says so for one
dimension of a device mesh, and knows nothing of `torch.distributed`, which `fusewheel.distributed`
hands the rules to. Keeping everything whole on every device always works and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

REPLICATE: Literal["replicate"] = "replicate"
"""Every device has the whole tensor."""

PARTIAL: Literal["partial"] = "partial"
"""The tensor is the sum of what the devices have."""

Place = int | Literal["replicate", "partial"]
"""Where a tensor is: a number is the dimension that is cut into pieces."""


@dataclass(frozen=True)
class Layout:
    """One way to divide an operator's work.

    Attributes:
        inputs: a place for each argument, None for those that are no tensors.
        outputs: a place for each result.
        even: whether it holds only where all pieces have one size.
    """

    inputs: tuple[Place | None, ...]
    outputs: tuple[Place, ...]
    even: bool = False


Rule = Callable[..., Iterator[Layout]]


def is_tensor(argument: Any) -> bool:
    """Whether an argument is a tensor, or what stands for one: it has a shape."""
    return hasattr(argument, "shape")


def places(arguments: Sequence[Any], where: Mapping[int, Place]) -> tuple[Place | None, ...]:
    """A place for each tensor among the arguments: whole, if it is not in `where`."""
    return tuple(
        where.get(i, REPLICATE) if is_tensor(argument) else None
        for i, argument in enumerate(arguments)
    )


@dataclass(frozen=True)
class Elementwise:
    """The rule of operands that broadcast, and results of the broadcast shape: cut along any
    dimension.

    Attributes:
        outputs: how many results there are.
        sums: places of the arguments of which the result is a sum then.
    """

    outputs: int = 1
    sums: tuple[tuple[Place, ...], ...] = ()

    def __call__(self, *arguments: Any) -> Iterator[Layout]:
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
    """Rows that know nothing of each other, the last dimension being whole.

    Args:
        along: the arguments that have these rows, with or without the last dimension.
        outputs: what has a value (or more) for each row, and what sums over the rows.
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
    """A linear layer: its rows cut, or its weight, as tensor parallelism does.

    Args:
        arguments: the operator's; the first has the features taken in its last dimension.
        given: the arguments that have the features given, in their first dimension.
        taken: where the other arguments are if the features taken are cut. The result is a sum of
            what the devices have then.
        even: whether the features taken can be cut into pieces of one size only.
    """
    last = len(arguments[0].shape) - 1
    for dim in range(last):
        yield Layout(places(arguments, {0: dim}), (dim,))
    yield Layout(places(arguments, dict.fromkeys(given, 0)), (last,))
    yield Layout(places(arguments, {0: last, **taken}), (PARTIAL,), even)


def linear_backward(
    arguments: Sequence[Any], given: Sequence[int], taken: Mapping[int, Place], even: bool = False
) -> Iterator[Layout]:
    """The gradient of a linear layer's input, the first argument being that of its result."""
    last = len(arguments[0].shape) - 1
    for dim in range(last):
        yield Layout(places(arguments, {0: dim}), (dim,))
    yield Layout(places(arguments, {0: last, **dict.fromkeys(given, 0)}), (PARTIAL,))
    yield Layout(places(arguments, taken), (last,), even)
