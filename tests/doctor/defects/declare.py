"""How a defect is declared: a function that makes an operator with one fault, or without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from fusewheel.doctor.traps import Trap
from torch import Tensor

library = torch.library.Library("defects", "DEF")
Samples = tuple[tuple[Any, ...], ...]
DEFECTS: list[Defect] = []


@dataclass(frozen=True)
class Twin:
    """One of two operators that differ in one fault.

    Attributes:
        name: of the operator.
        faulty: whether it is the one that has the fault.
    """

    name: str
    faulty: bool

    def operator(
        self,
        kernel: Callable[..., Any],
        schema: str = "(Tensor x) -> Tensor",
        *,
        keys: Sequence[str] = ("CPU",),
        fake: Callable[..., Any] | None = torch.empty_like,
        backward: Callable[..., Any] | None = None,
        save: Callable[..., Any] | None = None,
        name: str = "",
    ) -> Any:
        """An operator of the dispatcher under its name, or under another."""
        name = name or self.name
        library.define(name + schema)
        for key in keys:
            library.impl(name, kernel if "Composite" in key else below_autograd(kernel), key)
        if fake is not None:
            torch.library.register_fake(f"defects::{name}", fake, lib=library)
        if backward is not None:
            torch.library.register_autograd(
                f"defects::{name}", backward, setup_context=save or save_inputs, lib=library
            )
        return getattr(torch.ops.defects, name).default


@dataclass(frozen=True)
class Defect:
    """An operator with a fault, and where the doctor must find which mistake.

    Attributes:
        make: makes the operator of either twin.
        columns: the names of those that must find it, and must find nothing in the sound twin.
        trap: the mistake's name.
        samples: arguments for it.
        modules: what another process imports to have it.
        where: what the machine must have meanwhile, or seem to have.
        reason: a regular expression for what the doctor says of it.
    """

    make: Callable[[Twin], Any]
    columns: tuple[str, ...]
    trap: Trap
    samples: Samples
    modules: tuple[str, ...] = ()
    where: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)
    reason: str = ""

    @property
    def name(self) -> str:
        """What the fault is called."""
        return self.make.__name__

    @property
    def faulty(self) -> Any:
        """The operator with the fault."""
        return made(self.make, True)

    @property
    def sound(self) -> Any:
        """The same without it."""
        return made(self.make, False)


@cache
def made(make: Callable[[Twin], Any], faulty: bool) -> Any:
    """One of the twins, made when it is asked for, and registered once."""
    return make(Twin(make.__name__ + ("" if faulty else "_sound"), faulty))


def below_autograd(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """As a kernel in C++ is, which autograd does not see into."""

    def opaque(*arguments: Any) -> Any:
        with torch.no_grad():
            return kernel(*arguments)

    return opaque


def planted(
    *columns: str,
    trap: Trap,
    samples: Sequence[tuple[Any, ...]] = (),
    modules: Sequence[str] = (),
    where: Callable[[], AbstractContextManager[Any]] = nullcontext,
    reason: str = "",
) -> Callable[[Callable[[Twin], Any]], Callable[[Twin], Any]]:
    """Declares what the decorated function makes as a defect that these columns find."""

    def plant(make: Callable[[Twin], Any]) -> Callable[[Twin], Any]:
        given = tuple(samples) or ((random(3, 4),), (random(2, 3),))
        DEFECTS.append(Defect(make, columns, trap, given, tuple(modules), where, reason))
        return make

    return plant


def random(*shape: int) -> Tensor:
    """The same numbers for each shape every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def save_inputs(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    """Every tensor among the arguments."""
    ctx.save_for_backward(*(i for i in inputs if isinstance(i, Tensor)))


def doubled(ctx: Any, grad: Tensor) -> Tensor:
    """The gradient of `2 * x`."""
    return 2 * grad


def square_backward(ctx: Any, grad: Tensor) -> Tensor:
    """The gradient of `x * x`."""
    return 2 * ctx.saved_tensors[0] * grad
