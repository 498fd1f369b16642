"""`torch.func.vmap` calls a kernel once for all samples of a batch, as more rows.

The sharding rule of an operator (`sharding.py`) says along which dimension tensors can be cut into
pieces. Along that dimension samples can be put together. If no layout of the rule fits (a weight
for each sample, a gradient that sums over rows), the reference runs, which is made of operators
that PyTorch has `vmap` rules for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from fusewheel._torch.functorch import Batching, in_vmap
from fusewheel.dispatch.operator import Arguments, Operator
from fusewheel.dispatch.promise import promise
from fusewheel.dispatch.sharding import PARTIAL, Elementwise, Layout


@dataclass(frozen=True)
class Batch:
    """The arguments of all samples.

    Attributes:
        size: the number of samples, at least 1.
        arguments: tensors, which may have a dimension for the samples, and settings.
        dims: the dimension of the samples in each argument; None for what all samples share.
    """

    size: int
    arguments: Arguments
    dims: tuple[int | None, ...]

    def along(self, i: int, place: int) -> Tensor:
        """A view of argument `i` with the samples in dimension `place`, expanded if shared."""
        tensor: Tensor = self.arguments[i]
        dim = self.dims[i]
        if dim is not None:
            return tensor.movedim(dim, place)
        shape = list(tensor.shape)
        shape.insert(place, self.size)
        return tensor.unsqueeze(place).expand(shape)

    def shapes(self, in_front: bool = False) -> list[Any]:
        """The arguments for a rule: those of one sample, or of all in a new first dimension."""
        found = []
        for argument, dim in zip(self.arguments, self.dims, strict=True):
            if isinstance(argument, Tensor):
                shape = list(argument.shape)
                if dim is not None:
                    size = shape.pop(dim)
                    shape[:0] = [size] if in_front else []
                found.append(SimpleNamespace(shape=tuple(shape)))
            else:
                found.append(argument)
        return found


@dataclass(frozen=True)
class Call:
    """One call for all samples.

    Attributes:
        arguments: the operator's arguments.
        finish: gives the results a dimension of their own for the samples.
        places: that dimension for each result; None for a result that all samples share.
    """

    arguments: tuple[Any, ...]
    places: tuple[int | None, ...]
    finish: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = tuple


def transform_kernel(operator: Operator) -> Callable[..., Any]:
    """The kernel that runs first while a transform of `torch.func` is active."""
    promised_by = promise(operator)

    def kernel(*arguments: Any) -> Any:
        # What runs may be the reference, which takes more than the kernel does.
        promised_by(*arguments)
        if in_vmap():
            return _vmap(operator, arguments)
        return operator.reference(*arguments)

    return kernel


def _vmap(operator: Operator, arguments: Arguments) -> Any:
    batching = Batching()
    size = batching.size
    found = [batching.unwrap(a) if isinstance(a, Tensor) else (a, None) for a in arguments]
    values, dims = zip(*found, strict=True)
    with batching.outside():
        if all(dim is None for dim in dims):
            return operator.overload(*values)
        call = one_call(operator, Batch(size, values, dims)) if size else None
        if call is not None:
            result = operator.overload(*call.arguments)
            results = call.finish(() if result is None else _as_tuple(result))
    if call is None:
        return operator.reference(*arguments)
    if operator.mutates is not None:
        return None
    wrapped = tuple(
        r if place is None else batching.wrap(r, place)
        for r, place in zip(results, call.places, strict=True)
    )
    return wrapped if isinstance(result, tuple) else wrapped[0]


def _as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def one_call(operator: Operator, batch: Batch) -> Call | None:
    """How to call `operator` once for all samples; None if there is no such call."""
    if operator.sharding is None:
        return None
    if operator.mutates is not None:
        read = list(batch.dims)
        written = read[operator.mutates] if operator.in_place else read.pop(operator.mutates)
        # The written argument has no dimension for the samples, or nothing that is read has one.
        if written is None or not any(dim is not None for dim in read):
            return None
    if isinstance(operator.sharding, Elementwise):
        return _aligned(batch, operator.sharding)
    return _in_front(operator, batch) or _folded(operator, batch)


def _aligned(batch: Batch, rule: Elementwise) -> Call:
    """Samples in a new first dimension, in front of the dimensions that broadcast."""
    shapes = [a.shape for a in batch.shapes() if isinstance(a, SimpleNamespace)]
    rank = max(map(len, shapes))

    def front(i: int) -> Any:
        if batch.dims[i] is None:
            return batch.arguments[i]
        tensor = batch.along(i, 0)
        return tensor[(slice(None), *[None] * (rank + 1 - tensor.dim()))]

    return Call(tuple(map(front, range(len(batch.dims)))), (0,) * rule.outputs)


def _in_front(operator: Operator, batch: Batch) -> Call | None:
    """Samples in a new first dimension, for operators that take any number of dimensions."""
    for layout in _fitting(operator, batch, in_front=True):
        cut = {place for place in (*layout.inputs, *layout.outputs) if isinstance(place, int)}
        if cut != {0}:
            continue
        arguments = tuple(
            batch.along(i, 0) if place == 0 else batch.arguments[i]
            for i, place in enumerate(layout.inputs)
        )
        places = _places(operator, layout, arguments)
        if places is not None:
            return Call(arguments, places)
    return None


def _folded(operator: Operator, batch: Batch) -> Call | None:
    """Samples one after the other in an existing dimension: the one with the fewest copies."""
    fitting = _fitting(operator, batch, in_front=False)
    for layout in sorted(fitting, key=lambda layout: _copies(batch, layout)):
        arguments = list(batch.arguments)
        for i, place in enumerate(layout.inputs):
            if isinstance(place, int):
                arguments[i] = batch.along(i, place).flatten(place, place + 1)
        places = _places(operator, layout, tuple(arguments))
        if places is not None:
            return Call(tuple(arguments), places, _unfold(operator, batch, layout, arguments))
    return None


def _unfold(
    operator: Operator, batch: Batch, layout: Layout, arguments: list[Any]
) -> Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]:
    def apart(tensor: Tensor, place: Any) -> Tensor:
        if not isinstance(place, int):
            return tensor
        return tensor.unflatten(place, (batch.size, tensor.shape[place] // batch.size))

    def finish(results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        written = operator.mutates
        if written is not None and not _merges(batch, layout, written):
            place: Any = layout.inputs[written]
            batch.along(written, place).copy_(apart(arguments[written], place))
        return tuple(map(apart, results, layout.outputs))

    return finish


def _fitting(operator: Operator, batch: Batch, in_front: bool) -> Iterator[Layout]:
    """The layouts that cut every argument that has samples."""
    assert operator.sharding is not None
    for layout in operator.sharding(*batch.shapes(in_front)):
        own = (p for p, dim in zip(layout.inputs, batch.dims, strict=True) if dim is not None)
        if PARTIAL not in layout.inputs and all(isinstance(place, int) for place in own):
            yield layout


def _places(
    operator: Operator, layout: Layout, arguments: Arguments
) -> tuple[int | None, ...] | None:
    """The dimension of the samples in each result; None if the operator refuses these arguments or
    would sum over samples.
    """
    try:
        promised = promise(operator)(*arguments)
    except RuntimeError:
        return None
    results = () if promised is None else promised if isinstance(promised, tuple) else (promised,)
    for result, place in zip(results, layout.outputs, strict=True):
        # Results that were not asked for have no elements.
        if place == PARTIAL and result.numel():
            return None
    return tuple(place if isinstance(place, int) else None for place in layout.outputs)


def _copies(batch: Batch, layout: Layout) -> int:
    return sum(
        isinstance(place, int) and not _merges(batch, layout, i)
        for i, place in enumerate(layout.inputs)
    )


def _merges(batch: Batch, layout: Layout, i: int) -> bool:
    """Whether the samples of an argument can be put one after the other without a copy."""
    place: Any = layout.inputs[i]
    view = batch.along(i, place)
    size = view.shape[place + 1]
    return bool(size == 1 or view.stride(place) == size * view.stride(place + 1))
