"""An operator with one set of arguments, as a function of its tensors."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.builtins import tree_flatten, tree_unflatten

Tensors = tuple[Tensor, ...]
# The errors by which an operator may refuse its arguments.
REFUSALS = (
    *(RuntimeError, ValueError, TypeError, IndexError, NotImplementedError),
    AssertionError,
)


@dataclass(frozen=True)
class Subject:
    """What is examined.

    Attributes:
        name: its name in the report.
        call: the dispatcher's overload, or any Python function.
        schema: the schema of the overload; None for a Python function.
        modules: the modules that a new process imports to have it; empty if not known.
        fixed: the names of arguments whose values mean something else than a number, such as
            positions in a floating tensor: nothing changes them or differentiates by them.
    """

    name: str
    call: Callable[..., Any]
    schema: torch.FunctionSchema | None = None
    modules: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its arguments."""
        if self.schema is not None:
            return tuple(argument.name for argument in self.schema.arguments)
        return tuple(inspect.signature(self.call).parameters)

    @property
    def random(self) -> bool:
        """Whether its tags say that it draws random numbers."""
        tags = getattr(self.call, "tags", ())
        return torch.Tag.nondeterministic_seeded in tags


class Case:
    """A subject with arguments.

    Attributes:
        tensors: all tensors among the arguments, including those in lists.
        written: indices into `tensors` of those that the operator writes to, by its schema.
    """

    def __init__(self, subject: Subject, arguments: Sequence[Any]) -> None:
        self.subject = subject
        self.arguments = tuple(arguments)
        self._leaves, self._spec = tree_flatten(self.arguments)
        self._positions = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        self.tensors: Tensors = tuple(self._leaves[i].detach() for i in self._positions)
        self.written = self._written()
        # Python does not know the names of the arguments of every function.
        fixed = subject.fixed
        self._fixed = self._of(name in fixed for name in subject.names) if fixed else ()

    def _written(self) -> tuple[int, ...]:
        if self.subject.schema is None:
            return ()
        aliases = (argument.alias_info for argument in self.subject.schema.arguments)
        return self._of(info is not None and info.is_write for info in aliases)

    def _of(self, chosen: Iterable[bool]) -> tuple[int, ...]:
        """Indices of the tensors that belong to the arguments that are chosen."""
        owners: list[bool] = []
        for is_chosen, value in zip(chosen, self.arguments, strict=False):
            count = sum(isinstance(leaf, Tensor) for leaf in tree_flatten(value)[0])
            owners += [is_chosen] * count
        return tuple(i for i, is_chosen in enumerate(owners) if is_chosen)

    def __str__(self) -> str:
        return f"({', '.join(map(_describe, self.arguments))})"

    @property
    def size(self) -> int:
        """The number of elements of all tensors."""
        return sum(t.numel() for t in self.tensors)

    @cached_property
    def floating(self) -> tuple[int, ...]:
        """Indices of the tensors with floating dtype that are not fixed."""
        return tuple(
            i for i, t in enumerate(self.tensors) if t.is_floating_point() and i not in self._fixed
        )

    def given(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments, with these tensors in place of the case's own."""
        leaves = list(self._leaves)
        for i, tensor in zip(self._positions, tensors, strict=True):
            leaves[i] = tensor
        return tuple(tree_unflatten(leaves, self._spec))

    def using(self, tensors: Sequence[Tensor]) -> Case:
        """The same case with other tensors."""
        return Case(self.subject, self.given(tensors))

    @property
    def function(self) -> Callable[..., Tensors]:
        """The operator as a function of the tensors that does not write to them: what it would
        write is returned after its results.
        """
        call, given, written, fresh = self.subject.call, self.given, self.written, self.fresh

        def function(*tensors: Any) -> Tensors:
            own = [t.clone() if i in written else t for i, t in enumerate(tensors)]
            kept = fresh(call(*given(own)))
            return (*kept, *(own[i] for i in written))

        return function

    def fresh(self, result: Any) -> list[Tensor]:
        """The tensors of a result, without written arguments that the operator returns. They are
        found by their place, because under a transform they are other objects.
        """
        schema = self.subject.schema
        if self.written and schema is not None:
            values = (result,) if len(schema.returns) == 1 else result or ()
            aliases = [r.alias_info for r in schema.returns]
            result = [
                value
                for alias, value in zip(aliases, values, strict=True)
                if alias is None or not alias.is_write
            ]
        return [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)]

    def leaves(self, requires_grad: bool = True) -> Tensors:
        """The tensors, detached; those with a floating dtype require a gradient."""
        return tuple(
            t.detach().requires_grad_(requires_grad and i in self.floating)
            for i, t in enumerate(self.tensors)
        )

    def results(self) -> Tensors:
        """The function's results, without a graph."""
        with torch.no_grad(), quiet():
            return self.function(*self.tensors)

    @cached_property
    def exact(self) -> Case:
        """The case in float64, if the operator takes that."""
        wide = self.using([t.double() if t.is_floating_point() else t for t in self.tensors])
        try:
            wide.results()
        except REFUSALS:
            return self
        return wide

    def along(self, inputs: Sequence[Tensor], scale: float = 1.0) -> Tensors:
        """A random direction for each floating input."""
        generator = torch.Generator().manual_seed(7)
        return tuple(
            torch.rand(t.shape, generator=generator, dtype=torch.float64)
            .add_(0.5)
            .mul_(scale)
            .to(t)
            for t in inputs
        )

    @cached_property
    def slope(self) -> Tensors:
        """The directional derivative of every output, by finite differences."""
        inputs = [self.tensors[i] for i in self.floating]
        step = 1e-6 if all(t.dtype == torch.float64 for t in inputs) else 1e-2
        directions = self.along(inputs)
        ends = []
        for sign in (1, -1):
            moved = list(self.tensors)
            for i, d in zip(self.floating, directions, strict=True):
                moved[i] = moved[i] + sign * step * d
            ends.append(self.using(moved).results())
        return tuple(
            (a - b) / (2 * step) if a.is_floating_point() else torch.zeros(a.shape)
            for a, b in zip(*ends, strict=True)
        )

    @cached_property
    def recorded(self) -> tuple[bool, ...]:
        """Which outputs autograd has a gradient for."""
        with quiet():
            return tuple(o.requires_grad for o in self.function(*self.leaves()))

    @property
    def views(self) -> bool:
        """Whether an output shares memory with a tensor."""
        memory = {t.untyped_storage().data_ptr() for t in self.tensors if t.numel()}
        return any(o.untyped_storage().data_ptr() in memory for o in self.results())

    @cached_property
    def smooth(self) -> bool:
        """Whether an output changes in proportion to a small change of the floating inputs."""
        if not self.floating or self.subject.random:
            return False
        try:
            slope = self.exact.slope
        except REFUSALS:
            return False
        return any(bool((s.isfinite() & (s != 0)).any()) for s in slope)

    def resized(self, old: int, new: int) -> Case | None:
        """The case with every dimension of size `old` made `new`; None if that is refused."""

        def resize(tensor: Tensor) -> Tensor:
            for dim, size in enumerate(tensor.shape):
                if size == old:
                    index = torch.arange(new, device=tensor.device) % max(old, 1)
                    tensor = tensor.index_select(dim, index)
            return tensor

        case = self.using([resize(t) for t in self.tensors])
        try:
            case.results()
        except REFUSALS:
            return None
        return case

    def other_values(self) -> Case:
        """The case with its floating values in another order; a single value is scaled."""
        return self.using(
            [
                t
                if i not in self.floating
                else t.flatten().roll(1).view(t.shape)
                if t.numel() > 1
                else t * 0.75
                for i, t in enumerate(self.tensors)
            ]
        )


class quiet(warnings.catch_warnings):
    """A block without warnings, because the warnings of the examined operator are not ours."""

    def __enter__(self) -> Any:
        result = super().__enter__()
        warnings.simplefilter("ignore")
        return result


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        shape = ", ".join(map(str, value.shape))
        layout = "" if value.is_contiguous() else f", strides {list(value.stride())}"
        return f"{dtype}[{shape}{layout}]"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe, value))}]"
    return repr(value)
