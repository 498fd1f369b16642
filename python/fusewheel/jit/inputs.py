"""What a rewrite assumes about the inputs of a graph, as fake tensors and as TorchScript.

TorchScript runs one graph on inputs of any dtype and size. Matchers prove equality from dtypes and
sizes, so a rewritten graph runs where the inputs are as they were assumed to be, and the graph as
it was everywhere else. Sizes stay symbolic: only those that are 0 or 1 in the example, and the
relations that the operations themselves ask for, are assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .numbers import code_of


class UnsupportedInput(Exception):
    """An example input of a kind that cannot be checked when the graph runs."""


class Assumptions:
    """Example values and what must hold for others.

    Args:
        arguments: the inputs, as the schema has them.
        examples: tensors, numbers, strings, None, or lists and tuples of these.

    Raises:
        UnsupportedInput: for anything else.
    """

    def __init__(self, arguments: Sequence[torch.Argument], examples: Sequence[Any]) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        # Equal sizes in the example are no reason to take them for one.
        self._shapes = ShapeEnv(duck_shape=False)
        self.fake_mode = FakeTensorMode(shape_env=self._shapes)
        self._conditions: list[str] = []
        self._sizes: dict[Any, str] = {}
        self.tensors: list[Tensor] = []
        self._names: list[str] = []
        self.values = [self._input(*pair) for pair in zip(arguments, examples, strict=True)]

    def source(self) -> str:
        """The assumptions as an expression of TorchScript, the relations found so far included."""
        relations = [self._print(guard.expr) for guard in self._shapes.guards]
        return " and ".join(dict.fromkeys([*self._conditions, *relations])) or "True"

    @property
    def device(self) -> str:
        """The device of the first tensor as an expression of TorchScript."""
        return f"{self._names[0]}.device" if self._names else 'torch.device("cpu")'

    def _input(self, argument: torch.Argument, example: Any) -> Any:
        if argument.type.kind() == "OptionalType" and example is not None:
            self._conditions.append(f"{argument.name} is not None")
        return self._value(argument.name, example)

    def _value(self, name: str, example: Any) -> Any:
        if isinstance(example, Tensor):
            return self._tensor(name, example)
        if example is None:
            self._conditions.append(f"{name} is None")
        elif isinstance(example, bool):
            # TorchScript reads `not input` as `not in put`.
            self._conditions.append(name if example else f"not ({name})")
        elif isinstance(example, (int, float, str)):
            self._conditions.append(f"{name} == {example!r}")
        elif isinstance(example, (list, tuple)):
            if isinstance(example, list):
                self._conditions.append(f"len({name}) == {len(example)}")
            values = [self._value(f"{name}[{i}]", item) for i, item in enumerate(example)]
            return type(example)(values)
        else:
            raise UnsupportedInput(f"{name} is a {type(example).__name__}")
        return example

    def _tensor(self, name: str, example: Tensor) -> Tensor:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        if type(example) not in (Tensor, torch.nn.Parameter) or example.layout != torch.strided:
            raise UnsupportedInput(f"{name} is no plain dense tensor")
        # A fresh one: no memory shared with others, no gaps.
        fresh = torch.empty_like(example, memory_format=torch.contiguous_format)
        symbolic: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * example.dim())
        fake: Tensor = self.fake_mode.from_tensor(
            fresh.detach(), source=ConstantSource(name), symbolic_context=symbolic
        )
        conditions = [
            f"{name}.dim() == {example.dim()}",
            f"{name}.dtype == {code_of(example.dtype)}",
            _on(name, example.device),
            f"{name}.layout == 0",
            f"not ({name}.requires_grad)",  # derivatives are PyTorch's own
            f"{name}.is_contiguous()",
        ]
        for dim, size in enumerate(fake.shape):
            text = f"{name}.size({dim})"
            if isinstance(size, torch.SymInt):
                self._sizes[size.node.expr] = text
                conditions.append(f"{text} >= 2")
            else:
                conditions.append(f"{text} == {size}")
        self._conditions += conditions
        self.tensors.append(fake)
        self._names.append(name)
        return fake

    def _print(self, expression: Any) -> str:
        from torch.utils._sympy.printers import PythonPrinter

        sizes = self._sizes

        class Printer(PythonPrinter):
            def _print_Symbol(self, symbol: Any) -> str:
                return sizes[symbol]

        return f"({Printer().doprint(expression)})"


def _on(name: str, device: torch.device) -> str:
    return (
        f"{name}.is_cpu" if device.type == "cpu" else f'{name}.device == torch.device("{device}")'
    )
