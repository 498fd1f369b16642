"""Judges a function where eager's errors may have been luck, by eager's errors at its neighbours.

Of few elements eager may have hit every one. So where a kernel seems worse, eager is also judged
beside the arguments. Not only where they differ in their last bits: a difference of numbers close
to each other, or the sum of a large and a small one, loses the same for all of those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from oracle import Errors, NoNumberError, assert_allowed, tensors_of, to_dtype
from torch import Tensor

Arguments = tuple[Any, ...]
Function = Callable[..., Any]
Compute = Callable[[Function, Arguments], Sequence[Tensor]]

# Of how many elements eager's errors are looked for, first few and then more; each neighbour has as
# many as the tensor that is judged. And how many neighbours at the least, and at the most.
STAGES = ((1024, 4), (4096, 20), (65536, 60), (2**18, 240))
MOST = 1000
HALVES = (torch.bfloat16, torch.float16)
# How far those are, in proportion to each number, in turn: where numbers of one magnitude
# meet, and where two cancel that are close to each other.
REACHES = tuple(2.0**-k for k in (4, 20, 8, 16, 12))


def compute(function: Function, arguments: Arguments) -> Sequence[Tensor]:
    """The results of a function that writes nothing."""
    return tensors_of(function(*arguments))


def assert_call_as_good_as_eager(
    compute: Compute,
    own: Function,
    reference: Function,
    arguments: Arguments,
    what: str,
    infinite: bool = False,
    contract: Callable[..., Tensor | tuple[Tensor, ...]] | None = None,
) -> None:
    """Judges what `compute` makes of a function and its arguments.

    Args:
        compute: gives the tensors to compare, from a function and arguments.
        own: the function to judge.
        reference: what it is judged by.
        arguments: of both; tensors in the dtype that is tried.
        what: names the results in messages.
        infinite: whether there are infinite numbers among the arguments.
        contract: what each result may err beside that; one tensor is of all results.
    """
    got = compute(own, arguments)
    eager = compute(reference, arguments)
    exact = compute(reference, to_dtype(arguments, torch.float64))
    beside: Any = contract(*arguments) if contract else 0.0
    if not isinstance(beside, tuple):
        beside = (beside,) * len(got)
    errors = [Errors(tensor.dtype) for tensor in eager]
    add(errors, eager, exact)

    def judge() -> dict[int, AssertionError]:
        """The results that are not allowed."""
        failed = {}
        for k, (a, b, c, found) in enumerate(zip(got, eager, exact, errors, strict=True)):
            try:
                assert_allowed(a, b, c.double(), found, f"{what} {k}", infinite, beside[k])
            except NoNumberError:
                raise  # whatever eager's errors beside it are
            except AssertionError as error:
                failed[k] = error
        return failed

    generator = torch.Generator().manual_seed(0)
    for elements, least in STAGES:
        if not (failed := judge()):
            return
        fewest = max(1, min(got[k].numel() for k in failed))
        for i in range(min(max(elements // fewest, least), MOST)):
            reach = REACHES[i % len(REACHES)]
            add_errors_beside(errors, compute, reference, arguments, exact, generator, reach)
    for error in judge().values():
        raise error


def add(errors: Sequence[Errors], some: Sequence[Tensor], exact: Sequence[Tensor]) -> None:
    """Counts how far some results are from exact ones."""
    for found, a, b in zip(errors, some, exact, strict=True):
        found.add((a.double() - b.double()).abs(), b.double())


def add_errors_beside(
    errors: Sequence[Errors],
    compute: Compute,
    reference: Function,
    arguments: Arguments,
    exact: Sequence[Tensor],
    generator: torch.Generator,
    reach: float,
) -> None:
    """Counts eager's, at a neighbour of the arguments.

    Most sums of numbers in a half type are exact in float32, and which are not depends on their
    order: results in float32 are also judged by eager's at float32 arguments, whose sums round.

    float64 has nothing more exact beside it: there they are how far a last bit carries, or what
    float32 loses, in proportion, where that is more.
    """
    beside = neighbour(arguments, generator, reach)
    near = compute(reference, beside)
    add(errors, near, compute(reference, to_dtype(beside, torch.float64)))
    if any(isinstance(a, Tensor) and a.dtype in HALVES for a in arguments):
        narrow = neighbour(to_dtype(arguments, torch.float32), generator, reach)
        base = compute(reference, narrow)
        wide = compute(reference, to_dtype(narrow, torch.float64))
        for found, n, b, w in zip(errors, near, base, wide, strict=True):
            if n.dtype == b.dtype:
                found.add((b.double() - w.double()).abs(), w.double())
    alike = [n.dtype == e.dtype and n.is_floating_point() for n, e in zip(near, exact, strict=True)]
    if not any(alike):
        return
    last_bits = 2 * torch.finfo(torch.float64).eps
    closest = compute(
        reference, neighbour(to_dtype(arguments, torch.float64), generator, last_bits)
    )
    narrow = neighbour(to_dtype(arguments, torch.float32), generator, reach)
    base = compute(reference, narrow)
    wide = compute(reference, to_dtype(narrow, torch.float64))
    for found, same, e, c, b, w in zip(errors, alike, exact, closest, base, wide, strict=True):
        if same:
            found.add((e - c).abs(), e)
            ratio = torch.finfo(e.dtype).eps / torch.finfo(b.dtype).eps
            found.add(ratio * (b.double() - w.double()).abs(), w.double())


def neighbour(arguments: Arguments, generator: torch.Generator, reach: float) -> Arguments:
    """Floating numbers moved by up to `reach` times each."""

    def move(tensor: Tensor) -> Tensor:
        turns = 2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1
        return (tensor.double() * (1 + reach * turns)).to(tensor.dtype)

    return tuple(
        move(a) if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments
    )
