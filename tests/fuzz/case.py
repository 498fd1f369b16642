"""One call, and what must hold of it."""

from __future__ import annotations

from typing import Any

import torch
from calls import differentiable, eager, functional
from contracts import CONTRACTS, GRADIENT_CONTRACTS
from fusewheel.dispatch.operator import Operator
from hypothesis import strategies as st
from neighbours import Arguments, Function, assert_call_as_good_as_eager
from oracle import emulated, same, tensors_of
from torch import Tensor

from fuzz.draw import Draw, Strategy


class Case:
    """A call, gradients of its outputs, and the arguments whose gradients are asked for.

    `infinite` if there are infinite numbers among them.
    """

    def __init__(
        self,
        operator: Operator,
        arguments: Arguments,
        grads: tuple[Tensor, ...],
        wanted: tuple[int, ...],
        infinite: bool,
    ) -> None:
        self.operator = operator
        self.arguments = arguments
        self.grads = grads
        self.wanted = wanted
        self.infinite = infinite

    def __repr__(self) -> str:
        given, grads = (", ".join(map(describe, t)) for t in (self.arguments, self.grads))
        return f"{self.operator.name}({given}); gradients of {self.wanted} from ({grads})"

    def check(self) -> None:
        """Everything."""
        self.check_numbers()
        self.check_memory()
        self.check_layouts()
        if self.wanted:
            self.check_gradients()

    def check_numbers(self) -> None:
        """As good as eager's."""
        functions = self._own, self.operator.reference
        contract = CONTRACTS.get(self.operator.name)
        assert_call_as_good_as_eager(
            self._outputs, *functions, self.arguments, "output", self.infinite, contract
        )

    def check_gradients(self) -> None:
        """Likewise."""
        count = len(self.arguments)

        def gradients(function: Function, given: Arguments) -> tuple[Tensor, ...]:
            inputs = list(copied(given[:count]))
            for i in self.wanted:
                inputs[i] = inputs[i].detach().requires_grad_()
            found = zip(tensors_of(function(*inputs)), given[count:], strict=True)
            pairs = [(o, g.to(o.dtype)) for o, g in found if o.requires_grad]
            return torch.autograd.grad(
                [o for o, _ in pairs],
                [inputs[i] for i in self.wanted],
                [g for _, g in pairs],
                materialize_grads=True,
            )

        functions = functional(self.operator), eager(self.operator)
        given = (*self.arguments, *self.grads)
        contract = GRADIENT_CONTRACTS.get(self.operator.name)

        def allowed(*given: Any) -> tuple[Tensor, ...]:
            found = contract(*given)
            return tuple(found[i] for i in self.wanted)

        assert_call_as_good_as_eager(
            gradients, *functions, given, "gradient", contract=allowed if contract else None
        )

    def check_memory(self) -> None:
        """Nothing is written but what is said to be."""
        before, after = copied(self.arguments), copied(self.arguments)
        self._own(*after)
        if self.operator.mutates is not None:
            for arguments in (before, after):
                arguments[self.operator.mutates].zero_()
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            if isinstance(old, Tensor):
                assert torch.equal(memory(old), memory(new)), f"memory of argument {i} was written"

    def check_layouts(self) -> None:
        """Wherever the arguments lie: the same result, which lies where compilers expect it."""
        got = self._outputs(self._own, self.arguments)
        if self.operator.mutates is None:
            for k, (a, b) in enumerate(zip(got, fakes(self.operator, self.arguments), strict=True)):
                promised, given = ((t.shape, t.dtype, t.stride()) for t in (b, a))
                assert given == promised, f"output {k} is {given}, promised was {promised}"
        # PyTorch's products depend on it, and CUDA's sums on what may be loaded at once.
        if not self.operator.products and not emulated():
            plain = tuple(a.contiguous() if isinstance(a, Tensor) else a for a in self.arguments)
            for k, (a, b) in enumerate(zip(got, self._outputs(self._own, plain), strict=True)):
                assert same(a, b).all(), f"output {k} depends on the layout of the arguments"

    @property
    def _own(self) -> Function:
        return self.operator.overload

    def _outputs(self, function: Function, arguments: Arguments) -> tuple[Tensor, ...]:
        given = copied(arguments)
        result = function(*given)
        index = self.operator.mutates
        return tensors_of(result if index is None else given[index])


def cases(operator: Operator, strategy: Strategy) -> st.SearchStrategy[Case]:
    """Cases of an operator from the strategy for its arguments."""

    @st.composite
    def case(draw: st.DrawFn) -> Case:
        source = Draw(draw)
        arguments = strategy(source)
        wanted = tuple(i for i in differentiable(operator, arguments) if source.flag())
        # How a formula treats what is no number is its own business.
        wanted = wanted if source.special is None else ()
        grads = tuple(
            source.tensor(*o.shape, dtype=o.dtype) for o in fakes(operator, arguments) if wanted
        )
        # A large number may be infinite in a narrower tensor.
        infinite = any(isinstance(a, Tensor) and bool(a.isinf().any()) for a in arguments)
        return Case(operator, arguments, grads, wanted, infinite)

    return case()


def fakes(operator: Operator, arguments: Arguments) -> tuple[Tensor, ...]:
    """Tensors like the outputs."""
    index = operator.mutates
    return tensors_of(operator.fake(*arguments) if index is None else arguments[index])


def copied(arguments: Arguments) -> Arguments:
    """The same, in the same layout in other memory, which they share where they did."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(tensor: Tensor) -> Tensor:
        own = tensor.untyped_storage()
        place = storages.setdefault(own._cdata, own.clone())
        like = torch.empty(0, dtype=tensor.dtype)
        return like.set_(place, tensor.storage_offset(), tensor.shape, tensor.stride())

    return tuple(copy(a) if isinstance(a, Tensor) else a for a in arguments)


def memory(tensor: Tensor) -> Tensor:
    """All bytes of its storage."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def describe(argument: Any) -> str:
    """A tensor by its layout, and its numbers where they are few."""
    if not isinstance(argument, Tensor):
        return repr(argument)
    text = f"{str(argument.dtype).removeprefix('torch.')}{list(argument.shape)}"
    if not argument.is_contiguous() or argument.storage_offset():
        text += f" with strides {argument.stride()} from {argument.storage_offset()}"
    return text + (f" {argument.tolist()}" if argument.numel() <= 4 else "")
