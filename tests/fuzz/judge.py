"""What is expected of a call's numbers.

The oracle is that of the other tests, twice eager's error, but no luck of eager's counts: of few
elements it may have hit every one. So where a kernel seems worse, eager's error is also looked for
beside the arguments. Not only where they differ in their last bits: a difference of numbers close
to each other, or the sum of a large and a small one, loses the same for all of those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from oracle import to_dtype
from torch import Tensor

Arguments = tuple[Any, ...]
Function = Callable[..., Any]
Compute = Callable[[Function, Arguments], Sequence[Tensor]]

NEIGHBOURS = 64
# How far they are at the most, in proportion to each number.
REACH = 1 / 16


def assert_as_good(
    compute: Compute,
    own: Function,
    reference: Function,
    arguments: Arguments,
    what: str,
    infinite: bool = False,
) -> None:
    """Judges what `compute` makes of a function and its arguments, which may be infinite."""
    got = compute(own, arguments)
    eager = compute(reference, arguments)
    exact = compute(reference, to_dtype(arguments, torch.float64))
    worst = largest_errors(eager, exact)

    def judge() -> None:
        for k, triple in enumerate(zip(got, eager, exact, strict=True)):
            assert_close(*triple, worst[k], f"{what} {k}", infinite)

    try:
        judge()
    except AssertionError:
        generator = torch.Generator().manual_seed(0)
        for _ in range(NEIGHBOURS):
            found = errors_beside(compute, reference, arguments, exact, generator)
            worst = [max(pair) for pair in zip(worst, found, strict=True)]
        judge()


def assert_close(
    got: Tensor, eager: Tensor, exact: Tensor, worst: float, what: str, infinite: bool
) -> None:
    """`worst` is eager's error; one unit in the last place is always allowed."""
    assert (got.shape, got.dtype) == (eager.shape, eager.dtype), what
    info = torch.finfo(got.dtype)
    target = exact.to(got.dtype).double()
    wide, base, exact = (t.double() for t in (got, eager, exact))
    floor = info.eps * (exact.abs() + info.smallest_normal)
    if got.dtype == torch.float64 and exact.isfinite().any():
        floor = 64 * info.eps * exact[exact.isfinite()].abs().max().clamp(min=1)
    allowed = 2 * worst + floor
    right = (wide - exact).abs() <= allowed
    # At the end of the range, and where eager leaves it on its way.
    right |= same(wide, target) | same(wide, base) & ~(target.isfinite() & base.isfinite())
    right |= (wide == exact.sign() * torch.inf) & (exact.abs() + allowed >= info.max)
    if infinite:
        # Which terms cancel depends on how the formula is written; it may also know the limit.
        right |= exact.isnan() | (exact.isinf() & ~wide.isfinite())
    if not right.all():
        at = int((~right).flatten().nonzero()[0])
        own, true, other = (t.flatten()[at].item() for t in (wide, exact, base))
        raise AssertionError(
            f"{what}: got {own}, exact {true}, eager {other} (and at the most {worst:.3e} off), in "
            f"{int((~right).sum())} of {right.numel()} elements"
        )


def same(a: Tensor, b: Tensor) -> Tensor:
    """Where they are equal, NaN included."""
    return (a == b) | (a.isnan() & b.isnan())


def largest_errors(some: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Of each tensor, where both are finite."""
    off = [(a.double() - b.double()).abs() for a, b in zip(some, exact, strict=True)]
    off = [o[o.isfinite()] for o in off]
    return [o.max().item() if o.numel() else 0.0 for o in off]


def errors_beside(
    compute: Compute,
    reference: Function,
    arguments: Arguments,
    exact: Sequence[Tensor],
    generator: torch.Generator,
) -> list[float]:
    """Eager's, at a neighbour of the arguments.

    float64 has nothing more exact beside it: there they are how far a last bit carries, or what
    float32 loses, in proportion, where that is more.
    """
    beside = neighbour(arguments, generator, REACH)
    near, wide = (compute(reference, a) for a in (beside, to_dtype(beside, torch.float64)))
    found = largest_errors(near, wide)
    widest = [n.dtype == e.dtype for n, e in zip(near, exact, strict=True)]
    if any(widest):
        last_bits = 2 * torch.finfo(torch.float64).eps
        closest = neighbour(to_dtype(arguments, torch.float64), generator, last_bits)
        carried = largest_errors(exact, compute(reference, closest))
        narrow = neighbour(to_dtype(arguments, torch.float32), generator, REACH)
        base = compute(reference, narrow)
        lost = largest_errors(base, compute(reference, to_dtype(narrow, torch.float64)))
        for k in range(len(found)):
            if widest[k]:
                ratio = torch.finfo(near[k].dtype).eps / torch.finfo(base[k].dtype).eps
                found[k] = max(carried[k], ratio * lost[k])
    return found


def neighbour(arguments: Arguments, generator: torch.Generator, reach: float) -> Arguments:
    """Floating numbers moved by up to `reach` times each."""

    def move(tensor: Tensor) -> Tensor:
        turns = 2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1
        return (tensor.double() * (1 + reach * turns)).to(tensor.dtype)

    return tuple(
        move(a) if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments
    )
