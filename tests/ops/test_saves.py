"""An operator keeps for its backward what it declares (`Operator.saves`), and reads all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext

import pytest
import torch
from calls import differentiable
from fusewheel.dispatch.operator import Make, Operator
from oracle import tensors_of
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

Read = Callable[[str | None, Tensor], Tensor]


class Call:
    """One call of an operator with gradients for some of its arguments.

    Attributes:
        leaves: these arguments.
        tensors: its arguments and results, by their names in the schema.
        results: those that have gradients.
        kept: the names of the tensors that were saved, as often as they were. Known if what is
            saved is `read` by a function; autograd looks for writes if it is not.
    """

    def __init__(
        self, operator: Operator, arguments: tuple, needs: tuple[int, ...], read: Read | None = None
    ) -> None:
        schema = operator.overload._schema
        given = [a.detach().clone() if isinstance(a, Tensor) else a for a in arguments]
        for i in needs:
            given[i].requires_grad_()
        self.leaves = [given[i] for i in needs]
        if operator.mutates is not None:
            # A leaf must not be written. The old value of a result that is only written is no leaf.
            given[operator.mutates] = given[operator.mutates] * 1
        packed: list[Tensor] = []

        def pack(tensor: Tensor) -> int:
            packed.append(tensor)
            return len(packed) - 1

        def unpack(index: int) -> Tensor:
            return read(self.name_of(packed[index]), packed[index])

        with nullcontext() if read is None else saved_tensors_hooks(pack, unpack):
            result = operator.overload(*given)
        if operator.mutates is not None:
            result = given[operator.mutates]
        names = [argument.name for argument in schema.arguments]
        self.tensors = {
            name: value
            for name, value in zip(names, given, strict=True)
            if isinstance(value, Tensor) and value.numel() > 0
        }
        self.results = [r for r in tensors_of(result) if r.requires_grad]
        for value, name in zip(tensors_of(result), (r.name for r in schema.returns), strict=False):
            if name and value.numel() > 0:
                self.tensors[name] = value
        self.kept = sorted(str(self.name_of(t)) for t in packed if t.numel() > 0)

    def name_of(self, tensor: Tensor) -> str | None:
        """The argument or result that lies where a saved tensor does."""
        for name, own in self.tensors.items():
            if own.data_ptr() == tensor.data_ptr() and own.shape == tensor.shape:
                return name
        return None

    def gradients(self, outputs: slice, seeds: list[Tensor], order: int) -> list[Tensor]:
        """Those of the leaves for some of the results; with order 2 the second ones as well."""
        results = self.results[outputs]
        grads = [s.requires_grad_(order == 2) for s in seeds[outputs]]
        found = torch.autograd.grad(
            results, self.leaves, grads, create_graph=order == 2, materialize_grads=True
        )
        if order == 1:
            return list(found)
        slopes = [g for g in found if g.requires_grad]
        second = torch.autograd.grad(
            [(g * torch.arange(1.0, g.numel() + 1).view(g.shape)).sum() for g in slopes],
            [*self.leaves, *grads],
            materialize_grads=True,
        )
        return [*found, *second]


ALL, FIRST = slice(None), slice(0, 1)


def unchanged(name: str | None, tensor: Tensor) -> Tensor:
    return tensor


def seeds_of(call: Call) -> list[Tensor]:
    make = Make(torch.float64, seed=42)
    return [make(*r.shape) for r in call.results]


def recorded(operator: Operator) -> Iterator[tuple[tuple, tuple[int, ...]]]:
    """Samples and the arguments that need gradients: all of them, and each one alone."""
    for arguments in operator.samples(Make(torch.float64, seed=41)):
        if any(isinstance(a, Tensor) and a.numel() == 0 for a in arguments):
            continue
        if sum(a.numel() for a in arguments if isinstance(a, Tensor)) > 60_000:
            continue
        wanted = differentiable(operator, arguments)
        if operator.in_place:
            # With a gradient for another argument the reference runs.
            wanted = [i for i in wanted if i == operator.mutates]
        yield arguments, tuple(wanted)
        if len(wanted) > 1:
            yield from ((arguments, (i,)) for i in wanted)


def declared(operator: Operator, call: Call, needs: tuple[int, ...]) -> list[str]:
    count = len(operator.overload._schema.arguments)
    names = operator.saved(tuple(i in needs for i in range(count)))
    return sorted(name for name in names if name in call.tensors)


def test_what_is_declared_is_kept_and_nothing_else(operator: Operator):
    for arguments, needs in recorded(operator):
        call = Call(operator, arguments, needs, unchanged)
        assert call.kept == declared(operator, call, needs), f"gradients of arguments {needs}"


def test_only_writes_to_what_is_kept_matter(operator: Operator):
    """PyTorch refuses a backward that would read what was written since."""
    tried = set()
    for arguments, needs in recorded(operator):
        whole = Call(operator, arguments, needs, unchanged)
        # Sizes do not decide what autograd looks at.
        kinds = needs, *whole.tensors, *whole.kept
        if kinds in tried:
            continue
        tried.add(kinds)
        seeds = seeds_of(whole)
        want = whole.gradients(ALL, seeds, order=1)
        for name in whole.tensors:
            call = Call(operator, arguments, needs)
            with torch.no_grad():
                call.tensors[name].zero_()
            if name in whole.kept:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    call.gradients(ALL, seeds, order=1)
            else:
                got = call.gradients(ALL, seeds, order=1)
                torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_all_that_is_kept_is_read(operator: Operator):
    """Other numbers in its place change a first or a second derivative."""
    kept: dict[tuple[int, ...], set[str]] = {}
    read: dict[tuple[int, ...], set[str]] = {}
    for arguments, needs in recorded(operator):
        if not isinstance(operator.saves, Mapping) and len(needs) < max(map(len, kept), default=0):
            continue  # what all gradients together read is declared
        found = read.setdefault(needs, set())
        names = Call(operator, arguments, needs, unchanged).kept
        kept.setdefault(needs, set()).update(names)
        found.update(n for n in names if n not in found and is_read(operator, arguments, needs, n))
    assert read == kept


def is_read(operator: Operator, arguments: tuple, needs: tuple[int, ...], name: str) -> bool:
    def spoil(own: str | None, tensor: Tensor) -> Tensor:
        if own != name:
            return tensor
        return torch.full_like(tensor, torch.nan if tensor.is_floating_point() else 0)

    for outputs in (ALL, FIRST):
        for order in (1, 2):
            clean, spoilt = (Call(operator, arguments, needs, read) for read in (unchanged, spoil))
            seeds = seeds_of(clean)
            want = clean.gradients(outputs, seeds, order)
            try:
                got = spoilt.gradients(outputs, seeds, order)
            except RuntimeError as error:
                # Bounds of sequences have been read if they are refused.
                assert f"{name} must end" in str(error)
                return True
            pairs = zip(want, got, strict=True)
            if not all(torch.allclose(a, b, equal_nan=True) for a, b in pairs):
                return True
    return False
