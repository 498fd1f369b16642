"""The judge of numbers: a kernel may err twice as much as eager PyTorch does in the same dtype.

The exact result is the reference's in float64. Errors are compared at each magnitude of the exact
result, binade by binade (a binade is what lies between two powers of two): a large error of eager's
at a large result allows nothing at a small one. `neighbours.py` judges where eager may have been
lucky.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import fusewheel
import torch
from torch import Tensor

Step = list[Tensor]
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# Of fewer elements the largest error is luck, and of a small part of a tensor too, because the
# elements of a row share errors: they are judged together with larger ones.
ENOUGH = 32
PART = 1 / 64
# Another binade with few elements is judged with at most so many larger ones: errors follow the
# terms that were added up, and a sum that is small by chance has terms like those of larger sums.
LARGER = 2
# float64 has nothing more exact beside it, so that eager's own error is unknown: so many units in
# the last place of the largest element are allowed (of 1 at the least).
UNITS_OF_FLOAT64 = 64


def emulated() -> bool:
    """Whether CUDA kernels run on the CPU."""
    return any(backend.facts.get("cuda") == "emulated" for backend in fusewheel.backends())


def slow() -> bool:
    """Whether the kernels, or the processor itself (`nox -s neon`), are emulated."""
    return emulated() or "QEMU_CPU" in os.environ


def tensors_of(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def to_dtype(arguments: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(
        a.detach().to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in arguments
    )


class NoNumberError(AssertionError):
    """A result that no error of eager's would allow: NaN, or a number in the place of none."""


class Errors:
    """Eager's largest error in each binade of the exact results.

    The numbers below a dtype's smallest normal one are one binade: they have the same unit in the
    last place. The first place is that of zeros.

    Args:
        dtype: of the results.
        together: whether all magnitudes are judged as one.
    """

    _BINADES = 2200  # more than float64 has

    def __init__(self, dtype: torch.dtype, together: bool = False) -> None:
        self.dtype = dtype
        self._together = together
        self._largest = torch.zeros(self._BINADES, dtype=torch.float64)
        self._count = torch.zeros(self._BINADES, dtype=torch.int64)

    def add(self, off: Tensor, exact: Tensor) -> None:
        """Counts errors `off` of results that are `exact` (float64); not those of infinite ones."""
        if not self.dtype.is_floating_point:
            return  # whole numbers have none
        known = off.isfinite() & exact.isfinite()
        place = self._place(exact[known])
        self._largest.scatter_reduce_(0, place, off[known], "amax")
        self._count += torch.bincount(place, minlength=self._BINADES)

    def at(self, exact: Tensor) -> Tensor:
        """The largest error found at each element's magnitude, and below it.

        An error that is as large in a smaller result is worse, so it counts. The smallest results
        are judged with as many larger ones as make them enough; those of another binade with few
        elements with those of at most `LARGER` binades above it.
        """
        if self._together:
            return self._largest.max().expand(exact.shape)
        running = self._largest.cummax(0).values
        fewest = max(ENOUGH, PART * float(self._count.sum()))
        upto = self._count.cumsum(0)
        enough = upto - self._count[0] >= fewest
        first = int(enough.int().argmax()) if enough.any() else self._BINADES - 1
        table = running.clone()
        for above in range(1, LARGER + 1):
            # Elements of a binade, and of those above it that were looked at so far.
            found = upto.roll(1 - above)[:-above] - upto.roll(1)[:-above]
            table[1:-above] = torch.where(found[1:] < fewest, running[1 + above :], table[1:-above])
        table = table.clamp(min=running[first])
        if self._count[0] >= ENOUGH:
            table[0] = self._largest[0]
        return table[self._place(exact)]

    def _place(self, exact: Tensor) -> Tensor:
        """Of each number, its binade."""
        least = torch.tensor(torch.finfo(self.dtype).smallest_normal, dtype=torch.float64)
        exponent = exact.abs().clamp(min=least).frexp().exponent.long()
        exponent = exponent - least.frexp().exponent + 1
        return torch.where(exact == 0, 0, exponent.clamp(max=self._BINADES - 1))


def assert_as_good_as_eager(got: Tensor, eager: Tensor, exact: Tensor, what: str = "") -> None:
    """Compares three results of the same call, `exact` is that in float64."""
    errors = Errors(eager.dtype)
    errors.add((eager.double() - exact.double()).abs(), exact.double())
    assert_allowed(got, eager, exact, errors, what)


def assert_program_as_good_as_eager(
    got: Tensor, eager: Tensor, exact: Tensor, what: str = ""
) -> None:
    """Compares likewise, with eager's largest error at any magnitude.

    For programs, and where all of a row depends on one sum: errors follow the largest numbers that
    were added up on the way, and not the result.
    """
    errors = Errors(eager.dtype, together=True)
    errors.add((eager.double() - exact.double()).abs(), exact.double())
    assert_allowed(got, eager, exact, errors, what)


def assert_vector_as_good_as_eager(got: Tensor, eager: Tensor, exact: Tensor, what: str) -> None:
    """Compares by length: which single error is the largest one is a matter of chance."""
    off, allowed = (got - exact).norm(), 2 * (eager - exact).norm()
    assert off <= allowed, f"{what}: {off:.3e} off, eager {allowed / 2:.3e}"


def assert_as_good_as_call(
    got: Any, call: Callable[..., Any], *arguments: Any, **named: Any
) -> None:
    """Compares what a compiled or replaced `call` gave with `call` itself, as a program.

    A module is copied for the exact result. Of what a Hugging Face model returns, the logits count.
    """
    twin = copy.deepcopy(call).double() if isinstance(call, torch.nn.Module) else call
    wide = dict(zip(named, to_dtype(tuple(named.values()), torch.float64), strict=True))
    results = got, call(*arguments, **named), twin(*to_dtype(arguments, torch.float64), **wide)
    own, eager, exact = (tensors_of(getattr(found, "logits", found)) for found in results)
    for i, values in enumerate(zip(own, eager, exact, strict=True)):
        assert_program_as_good_as_eager(*values, what=f"result {i}")


def assert_allowed(
    got: Tensor,
    eager: Tensor,
    exact: Tensor,
    errors: Errors,
    what: str,
    infinite: bool = False,
    beside: Tensor | float = 0.0,
) -> None:
    """Allows twice the `errors` of eager, and a unit in the last place of each element.

    Whole numbers must be equal.

    Args:
        got: the result to judge.
        eager: PyTorch's, in the same dtype.
        exact: that in float64.
        errors: eager's, by magnitude.
        what: names the result in messages.
        infinite: whether there were infinite numbers among the arguments.
        beside: what a contract allows each element beside that.
    """
    assert got.shape == eager.shape, f"{what}: shape {tuple(got.shape)} not {tuple(eager.shape)}"
    assert got.dtype == eager.dtype, f"{what}: dtype {got.dtype} not {eager.dtype}"
    if got.numel() == 0:
        return
    if not got.is_floating_point():
        assert torch.equal(got.double(), exact.double()), f"{what}: {got}, not {exact}"
        return
    info = torch.finfo(got.dtype)
    rounded = exact.to(got.dtype).double()
    wide, base, exact = got.double(), eager.double(), exact.double()
    finite = exact.isfinite()
    floor = info.eps * (exact.abs() + info.smallest_normal)
    largest = exact[finite].abs().max() if finite.any() else exact.new_zeros(())
    if got.dtype == torch.float64:
        floor = UNITS_OF_FLOAT64 * info.eps * largest.clamp(min=1)
    # Where terms cancel to 0 in float64, what they should leave may be below its last place.
    floor = torch.where(exact == 0, torch.finfo(torch.float64).eps * largest + floor, floor)
    worst = errors.at(exact)
    allowed = 2 * worst + floor + beside
    right = finite & ((wide - exact).abs() <= allowed)
    # At the end of the range, and where eager leaves it on its way.
    right |= same(wide, rounded) | same(wide, base) & ~(rounded.isfinite() & base.isfinite())
    right |= (wide == exact.sign() * torch.inf) & finite & (exact.abs() + allowed >= info.max)
    if infinite:
        # Which terms cancel depends on how the formula is written; it may also know the limit.
        right |= exact.isnan() | (exact.isinf() & ~wide.isfinite())
    if not right.all():
        # No error of eager's allows NaN, or a number in the place of none.
        hopeless = (~right & ~(finite & ~wide.isnan())).any()
        at = int((~right).flatten().nonzero()[0])
        own, true, other, most = (t.flatten()[at].item() for t in (wide, exact, base, worst))
        raise (NoNumberError if hopeless else AssertionError)(
            f"{what}: got {own}, exact {true}, eager {other} (at most {most:.3e} off at this "
            f"magnitude), in {int((~right).sum())} of {right.numel()} elements"
        )


def same(a: Tensor, b: Tensor) -> Tensor:
    """Where they are equal, NaN included."""
    return (a == b) | (a.isnan() & b.isnan())


def assert_step_as_good_as_eager(got: Step, eager: Step, exact: Step) -> None:
    """Logits, loss and the vector of all gradients of a training step."""
    for a, b in zip(got, eager, strict=True):
        assert a.dtype == b.dtype
    assert_program_as_good_as_eager(got[0], eager[0], exact[0], "logits")
    # The loss is judged beside the logits: that eager's single number is exact is chance.
    logits, loss = ((eager[i].double() - exact[i].double()).abs().max() for i in (0, 1))
    # Where a model upcasts its logits to float32, the exact loss is rounded to that as well.
    units = 2 if exact[1].dtype == torch.float32 else 1
    floor = units * torch.finfo(got[1].dtype).eps * exact[1].abs()
    assert (got[1].double() - exact[1]).abs() <= 2 * max(logits, loss) + floor, "loss"
    assert_vector_as_good_as_eager(got[2], eager[2], exact[2], "gradients")
