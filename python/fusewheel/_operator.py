"""What an operator is, said once: tests, documentation, benchmark and doctor read it from here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fusewheel._sharding import Rule

Arguments = tuple[Any, ...]


class Make:
    """Makes the tensors of sample inputs: random, of one dtype and device.

    Args:
        dtype: of every tensor made.
        device: where they live.
        requires_grad: whether they do.
        seed: of the generator; the same seed gives the same tensors.
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
        """A contiguous tensor of normal deviates times `scale`."""
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64) * scale
        return self._finish(values.to(self.dtype).to(self.device))

    def strided(self, *shape: int) -> Tensor:
        """A view with gaps between all its elements, NaN in the gaps: reading one shows."""
        wide = [2 * size + 1 for size in shape]
        base = torch.full(wide, float("nan"), dtype=self.dtype, device=self.device)
        view = base[tuple(slice(1, None, 2) for _ in shape)]
        view.copy_(torch.randn(shape, generator=self._generator, dtype=torch.float64))
        return self._finish(view)

    def transposed(self, *shape: int) -> Tensor:
        """A dense tensor whose last two dimensions lie the other way round in memory."""
        values = torch.randn(
            (*shape[:-2], shape[-1], shape[-2]), generator=self._generator, dtype=torch.float64
        )
        return self._finish(values.to(self.dtype).to(self.device).transpose(-1, -2))

    def _finish(self, tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class BadInput:
    """Arguments an operator must refuse, and a regular expression its message must match."""

    arguments: Arguments
    message: str


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One dispatcher operator, `torch.ops.fusewheel.<name>`.

    Attributes:
        name: as in the schema.
        reference: the same result in differentiable PyTorch operators; serves devices without a
            kernel, `torch.func`, forward-mode AD, and as the baseline of tests and benchmark.
        fake: shapes, dtypes and strides of the outputs from those of the inputs.
        shapes: the shape of each output for TorchScript, as an expression over the arguments (a
            tensor being its list of sizes) and the functions of `fusewheel.jit.shapes`.
        backward: `backward(needs, grads, arguments, saved)` returns one gradient (or None) per
            argument; `needs` says for which, `saved` are the auxiliary outputs. Without it the
            gradient is that of the reference.
        auxiliary: indices of the outputs that the backward pass wants to see.
        materialize_grads: whether the gradient of an unused output is zeros rather than None.
        products: whether PyTorch's own matrix products are part of it: like them, it may round
            otherwise with another number of threads.
        mutates: index of the argument that is written, if one is.
        autocast: what autocast makes of tensors of several floating dtypes: all get the `"widest"`
            of theirs, or as PyTorch's products the `"lower"` one that autocast was given; None
            leaves them alone. What is written keeps its dtype, and the others get that. An
            operator without a public function, which sees what another one saved, has no rule.
        statistics: indices of the arguments that have one value for a row, in the dtype that it is
            computed in: autocast leaves them alone.
        flops: floating-point operations of its products, from its arguments; those of its
            reference as PyTorch counts them. Without it none are counted.
        sharding: how it runs on pieces of its tensors, one per device (`_sharding.py`). Without it
            `torch.distributed` knows no way to run it on distributed tensors.
        in_place: whether that argument is read too. Its gradient is all that `backward` gives:
            where another argument needs one, and for it the value that is gone, the reference runs.
        samples: argument tuples that exercise it.
        bad_inputs: argument tuples it must refuse.
        benchmarks: labelled argument tuples of the sizes that models use.
        function: the public function over it, if it has one.
        rival: PyTorch's function of the same arguments as `function`. With it `benchmarks` are
            arguments of these two; without, of the operator and its reference.
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
    auxiliary: tuple[int, ...] = ()
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

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The dispatcher's handle."""
        overload: torch._ops.OpOverload = getattr(torch.ops.fusewheel, self.name).default
        return overload
