"""Nodes, storages and fake tensors of captured graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

from fusewheel._torch.dynamo import constant_source


def is_erased(node: Node) -> bool:
    """Whether a node was taken out of its graph."""
    erased = getattr(node, "_erased", None)
    return node not in node.graph.nodes if erased is None else bool(erased)


def telling_of_replacements(
    module: GraphModule, hook: Callable[..., None]
) -> contextlib.AbstractContextManager[Any]:
    """A block in which `hook(old=, new=, user=)` is told of each input of a node that changes."""
    set_hook = getattr(module, "_set_replace_hook", None)
    if set_hook is not None:
        block: contextlib.AbstractContextManager[Any] = set_hook(hook)
        return block
    return _watching(module, hook)


@contextlib.contextmanager
def _watching(module: GraphModule, hook: Callable[..., None]) -> Any:
    """Tells afterwards which outputs changed: these are what a signature names."""
    output = next(node for node in module.graph.nodes if node.op == "output")
    before = list(output.all_input_nodes)
    yield
    for old, new in zip(before, output.all_input_nodes, strict=True):
        if old is not new:
            hook(old=old, new=new.name, user=output)


def storage_key(tensor: torch.Tensor) -> int:
    """A number shared by all tensors that view the same memory."""
    storage = tensor.untyped_storage()
    key = getattr(storage, "_cdata", None)
    return int(StorageWeakRef(storage).cdata if key is None else key)


def copy_source(node: Node, to: Node) -> None:
    """Copy what Dynamo notes on an input for AOTAutograd, if it does."""
    if hasattr(node, "_dynamo_source"):
        to._dynamo_source = node._dynamo_source


class Fakes:
    """Makes fake tensors and symbolic sizes that belong together.

    Attributes:
        mode: PyTorch's mode, under which operators compute shapes only.
    """

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        # Sizes that are equal in the example may differ in another call.
        self._shapes = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self._shapes)

    def size(self, name: str, example: int) -> torch.SymInt:
        """A symbol for any size from 2 on."""
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = constant_source(name)
        symbol = self._shapes.create_symbol(example, source, DimDynamic.DYNAMIC)
        size = self._shapes.create_symintnode(symbol, hint=example, source=source)
        assert isinstance(size, torch.SymInt)
        return size

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake of a tensor, with its sizes as numbers."""
        fake: torch.Tensor = self.mode.from_tensor(tensor, static_shapes=True)
        return fake

    def conditions(self) -> list[Any]:
        """What must hold of the symbols for what was computed with them, in sympy."""
        return [guard.expr for guard in self._shapes.guards]


def is_fake(value: object) -> bool:
    """Whether a value is a tensor without numbers."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)
