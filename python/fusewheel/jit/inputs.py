"""The assumptions of a rewrite about inputs and attributes, as fake tensors and as TorchScript.

TorchScript runs one graph on inputs of any dtype and size. A rewrite is proven for some dtypes and
sizes. So the rewritten graph runs if the inputs satisfy these assumptions, and otherwise the
original graph runs. Sizes stay symbolic. Assumed are only sizes that are 0 or 1 in the example, and
the relations between sizes that the operations need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.dynamo import constant_source
from fusewheel._torch.fx import fake_mode, in_python
from fusewheel.jit.graph.numbers import code_of


class UnsupportedInput(Exception):
    """An example input of a type that cannot be checked when the graph runs."""


class Assumptions:
    """Example values, and the conditions on other values.

    Args:
        arguments: the inputs, from the schema.
        examples: tensors, numbers, strings, None, or lists and tuples of these.

    Raises:
        UnsupportedInput: if an example is of another type.
    """

    def __init__(self, arguments: Sequence[torch.Argument], examples: Sequence[Any]) -> None:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        # Sizes that are equal in the example may differ in other inputs.
        self._shapes = ShapeEnv(duck_shape=False)
        self.fake_mode = fake_mode(shape_env=self._shapes)
        self._conditions: list[str] = []
        self._kept: list[str] = []
        self._sizes: dict[Any, str] = {}
        self.kept_tensors: list[str] = []
        self.tensors: list[Tensor] = []
        self._names: list[str] = []
        self.values = [self._input(*pair) for pair in zip(arguments, examples, strict=True)]

    def source(self) -> str:
        """The assumptions, with the relations found so far, as a TorchScript expression."""
        relations = [self._print(guard.expr) for guard in self._shapes.guards]
        return " and ".join(dict.fromkeys([*self._conditions, *relations])) or "True"

    def keep(self, name: str, example: Any) -> Any:
        """Assume that an attribute of the module stays the same, except the values of its tensors.

        Args:
            name: a TorchScript expression for the attribute.
            example: its value.

        Returns:
            the value, with fake tensors in place of tensors.

        Raises:
            UnsupportedInput: if it is of a type that an input cannot have.
        """
        conditions, self._conditions = self._conditions, []
        try:
            value = self._value(name, example, kept=True)
            self._kept += self._conditions
        finally:
            self._conditions = conditions
        return value

    def kept(self) -> str:
        """The assumptions of `keep` as a TorchScript expression."""
        return " and ".join(self._kept) or "True"

    @property
    def device(self) -> str:
        """The device of the first tensor as a TorchScript expression."""
        return f"{self._names[0]}.device" if self._names else 'torch.device("cpu")'

    def _input(self, argument: torch.Argument, example: Any) -> Any:
        if argument.type.kind() == "OptionalType" and example is not None:
            self._conditions.append(f"{argument.name} is not None")
        return self._value(argument.name, example)

    def _value(self, name: str, example: Any, kept: bool = False) -> Any:
        if isinstance(example, Tensor):
            return self._attribute(name, example) if kept else self._tensor(name, example)
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
            values = [self._value(f"{name}[{i}]", item, kept) for i, item in enumerate(example)]
            return type(example)(values)
        else:
            raise UnsupportedInput(f"{name} is a {type(example).__name__}")
        return example

    def _tensor(self, name: str, example: Tensor) -> Tensor:
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        fresh = _fresh(name, example)
        symbolic: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * example.dim())
        fake: Tensor = self.fake_mode.from_tensor(
            fresh, source=constant_source(name), symbolic_context=symbolic
        )
        conditions = [
            f"{name}.dim() == {example.dim()}",
            *_kind(name, example),
            f"not ({name}.requires_grad)",  # the original graph computes derivatives
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

    def _attribute(self, name: str, example: Tensor) -> Tensor:
        fake: Tensor = self.fake_mode.from_tensor(_fresh(name, example), static_shapes=True)
        self._conditions += [f"{name}.size() == {list(example.shape)}", *_kind(name, example)]
        self.tensors.append(fake)
        self.kept_tensors.append(name)
        return fake

    def _print(self, expression: Any) -> str:
        return f"({in_python(expression, self._sizes)})"


def _fresh(name: str, example: Tensor) -> Tensor:
    """A tensor like the example that shares no memory with others and has no gaps."""
    if type(example) not in (Tensor, torch.nn.Parameter) or example.layout != torch.strided:
        raise UnsupportedInput(f"{name} is not a plain dense tensor")
    return torch.empty_like(example, memory_format=torch.contiguous_format).detach()


def _kind(name: str, example: Tensor) -> list[str]:
    return [
        f"{name}.dtype == {code_of(example.dtype)}",
        _on(name, example.device),
        f"{name}.layout == 0",
        f"{name}.is_contiguous()",
    ]


def _on(name: str, device: torch.device) -> str:
    return (
        f"{name}.is_cpu" if device.type == "cpu" else f'{name}.device == torch.device("{device}")'
    )
