"""The declaration of an operator, which tests, documentation, benchmark and doctor read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fusewheel._torch.overloads import OpOverload
from fusewheel.dispatch.sharding import Rule

Arguments = tuple[Any, ...]
Saves = tuple[str, ...] | Mapping[str, tuple[str, ...]]


class Unsaved(NamedTuple):
    """What `Operator.backward` gets in the place of a tensor that was not saved for it.

    Attributes:
        shape: of the tensor.
        dtype: of the tensor.
    """

    shape: torch.Size
    dtype: torch.dtype

    def blank(self, beside: Tensor) -> Tensor:
        """A tensor of this shape and dtype, for code that wants one and does not read its numbers.

        It is on the device of `beside`, and NaN: numbers that are read after all show.
        """
        value = float("nan") if self.dtype.is_floating_point else 0
        return beside.new_full((), value, dtype=self.dtype).expand(self.shape)


class Make:
    """Makes random tensors of one dtype and device for sample inputs.

    Args:
        dtype: the dtype of every tensor; default float32.
        device: the device of every tensor; default "cpu".
        requires_grad: whether they require a gradient; default False.
        seed: the seed of the generator; the same seed gives the same tensors. Default 0.
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        requires_grad: bool = False,
        seed: int = 0,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.requires_grad = requires_grad
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        """A contiguous tensor of normally distributed values times `scale`."""
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64) * scale
        return self._finish(values.to(self.dtype).to(self.device))

    def strided(self, *shape: int) -> Tensor:
        """A view with gaps between all elements; the gaps are NaN, so that reading one shows."""
        wide = [2 * size + 1 for size in shape]
        base = torch.full(wide, float("nan"), dtype=self.dtype, device=self.device)
        view = base[tuple(slice(1, None, 2) for _ in shape)]
        view.copy_(torch.randn(shape, generator=self._generator, dtype=torch.float64))
        return self._finish(view)

    def transposed(self, *shape: int) -> Tensor:
        """A dense tensor whose last two dimensions are swapped in memory."""
        values = torch.randn(
            (*shape[:-2], shape[-1], shape[-2]), generator=self._generator, dtype=torch.float64
        )
        return self._finish(values.to(self.dtype).to(self.device).transpose(-1, -2))

    def _finish(self, tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class BadInput:
    """Arguments that an operator must refuse, and a regular expression for the error message."""

    arguments: Arguments
    message: str


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One dispatcher operator, `torch.ops.fusewheel.<name>`.

    Attributes:
        name: its name in the schema.
        reference: computes the same in differentiable PyTorch operators. It runs on devices without
            a kernel, under `torch.func` and in forward-mode AD, and is the baseline of tests and
            benchmark.
        fake: returns empty outputs, with the shapes, dtypes and strides that follow from the
            inputs.
        shapes: the shape of each output for TorchScript: an expression over the arguments, in which
            a tensor stands for its list of sizes, and the functions of `fusewheel.jit.shapes`.
        backward: `backward(needs, grads, arguments, saved)` returns one gradient (or None) per
            argument; `needs` says for which. An argument that was not saved is an `Unsaved`;
            `saved` are the results that were, in the order of `saves`. Without it the gradient is
            that of the reference.
        saves: the names of the arguments and results whose numbers `backward` reads, as in the
            schema. They are kept in memory until then, and autograd refuses a backward pass after
            one of them was written to. If the gradients of different arguments read different
            tensors: a mapping from the name of each argument to what its gradient reads. Without
            it all tensor arguments are saved. An argument that the operator writes to never is.
        materialize_grads: whether the gradient of an unused output is zeros and not None.
        products: whether it calls PyTorch's matrix products. Like them it may then round
            differently with another number of threads.
        mutates: the index of the argument that it writes to; None if there is none.
        autocast: how autocast converts floating tensors of several dtypes: `"widest"` converts all
            to the widest of them, `"lower"` to the dtype that autocast was given, as for PyTorch's
            matrix products; None converts nothing. If an argument is written to, all others get its
            dtype. Operators without a public function have no rule: their inputs were saved by
            another operator.
        statistics: indices of the arguments with one value for a row, in the dtype of computation;
            autocast does not convert them.
        flops: the number of floating-point operations of its matrix products, from its arguments,
            as PyTorch counts them for the reference. Without it none are counted.
        sharding: on which pieces of its tensors it can run, see `fusewheel.dispatch.sharding`.
            Without it `torch.distributed` refuses distributed tensors.
        in_place: whether the argument that is written to is read too. `backward` then gives the
            gradient of that argument only. If another argument needs a gradient, for which the
            overwritten value is needed, the reference runs.
        samples: argument tuples that cover its options, shapes and strides.
        bad_inputs: argument tuples that it must refuse. `refusals` adds those with a tensor that is
            missing, sparse or complex.
        benchmarks: argument tuples of the sizes that models use, each with a label.
        function: its public function, if it has one.
        rival: PyTorch's function with the same arguments as `function`. With it `benchmarks` are
            arguments of these two functions; without it, of the operator and its reference.
    """

    name: str
    reference: Callable[..., Any]
    fake: Callable[..., Any]
    samples: Callable[[Make], Iterable[Arguments]]
    bad_inputs: Callable[[Make], Iterable[BadInput]]
    shapes: tuple[str, ...] = ()
    benchmarks: Callable[[Make], Iterable[tuple[str, Arguments]]] | None = None
    backward: (
        Callable[[Sequence[bool], Sequence[Any], Arguments, Sequence[Tensor]], Sequence[Any]] | None
    ) = None
    saves: Saves | None = None
    materialize_grads: bool = True
    products: bool = False
    mutates: int | None = None
    in_place: bool = False
    autocast: Literal["widest", "lower"] | None = "widest"
    statistics: tuple[int, ...] = ()
    flops: Callable[..., int] | None = None
    sharding: Rule | None = None
    function: Callable[..., Any] | None = None
    rival: Callable[..., Any] | None = None

    def refusals(self, make: Make) -> Iterator[BadInput]:
        """What it must refuse: its bad inputs, and each tensor missing, sparse or complex."""
        yield from self.bad_inputs(make)
        good = max(
            self.samples(make), key=lambda sample: sum(isinstance(a, Tensor) for a in sample)
        )
        schema = self.overload._schema.arguments
        for i, (argument, value) in enumerate(zip(schema, good, strict=False)):
            if isinstance(value, Tensor):
                before, name, after = good[:i], argument.name, good[i + 1 :]
                wrong = value.detach().to(torch.complex64)
                yield BadInput((*before, wrong, *after), f"{name} must .*got complex64")
                yield BadInput(
                    (*before, value.detach().to_sparse(), *after), f"{name} must be a dense tensor"
                )
                if str(argument.type) == "Tensor":
                    yield BadInput((*before, None, *after), rf"{name}\b.*(None|NoneType)")

    @property
    def overload(self) -> OpOverload:
        """The operator in `torch.ops`."""
        overload: OpOverload = getattr(torch.ops.fusewheel, self.name).default
        return overload

    def saved(self, needs: Sequence[bool]) -> tuple[str, ...]:
        """The names of what is saved if the arguments for which `needs` says so need gradients."""
        names = [argument.name for argument in self.overload._schema.arguments]
        if self.saves is None:
            found = dict.fromkeys(names)
        elif isinstance(self.saves, Mapping):
            wanted = [name for name, needed in zip(names, needs, strict=True) if needed]
            found = dict.fromkeys(read for name in wanted for read in self.saves[name])
        else:
            found = dict.fromkeys(self.saves)
        if self.mutates is not None:
            found.pop(names[self.mutates], None)
        return tuple(found)
