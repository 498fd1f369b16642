"""Nodes, storages and fake tensors of captured graphs."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

from fusewheel._torch import copy_on_write
from fusewheel._torch.dynamo import constant_source
from fusewheel._torch.find import find

# It prints what an operator raises on fake tensors, although the caller sees that too.
_log_of_fakes = logging.getLogger("torch._subclasses.fake_tensor")
_is_quiet = contextvars.ContextVar("_is_quiet", default=False)
_log_of_fakes.addFilter(lambda _: not _is_quiet.get())


def is_erased(node: Node) -> bool:
    """Whether a node was taken out of its graph."""
    erased = getattr(node, "_erased", None)
    return node not in node.graph.nodes if erased is None else bool(erased)


def module_of(graph: Graph, attributes: Mapping[str, torch.Tensor] | None = None) -> GraphModule:
    """The module of a graph; its code is written when it is first called, if this torch can wait.

    A graph that is changed several times, and then made a program, needs none.

    Args:
        graph: the graph.
        attributes: the tensors that it reads. Default None, which means none.
    """
    root = torch.nn.Module()
    for name, tensor in (attributes or {}).items():
        root.register_buffer(name, tensor)
    lazy = find("torch.fx._lazy_graph_module._use_lazy_graph_module", "write code late", None)
    make = find("torch.fx._lazy_graph_module._make_graph_module", "write code late", None)
    if lazy is None or make is None:
        return GraphModule(root, graph)
    with lazy(True):
        module: GraphModule = make(root, graph)
    return module


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


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A block in which what operators raise on fake tensors is not printed, in this thread."""
    before = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(before)


class Fakes:
    """Makes fake tensors and symbolic sizes that belong together.

    Attributes:
        mode: PyTorch's mode, under which operators compute shapes only.
    """

    def __init__(self) -> None:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        # Sizes that are equal in the example may differ in another call.
        self._shapes = ShapeEnv(duck_shape=False)
        self._names: dict[Any, str] = {}  # of symbols
        # It notes the user's line for each symbol, and imports export and Inductor to know theirs.
        vars(self._shapes)["_get_user_frame"] = inspect.currentframe
        self.mode = _mode_class()(shape_env=self._shapes)

    def size(self, name: str, example: int) -> torch.SymInt:
        """A symbol for any size from 2 on."""
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = constant_source(name)
        symbol = self._shapes.create_symbol(example, source, DimDynamic.DYNAMIC)
        self._names[symbol] = name
        size = self._shapes.create_symintnode(symbol, hint=example, source=source)
        assert isinstance(size, torch.SymInt)
        return size

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake of a tensor, with its sizes as numbers."""
        fake: torch.Tensor = self.mode.from_tensor(tensor, static_shapes=True)
        return fake

    def keep_calls(self, keep: bool) -> None:
        """Whether an operator that is called again copies the first result.

        What is kept of a call for this takes as long as the call: it pays if many are equal.
        """
        self.mode.cache_enabled = keep

    def copying(self) -> contextlib.AbstractContextManager[None]:
        """A block in which `again` may be called, but no operators."""
        return _below(self.mode)

    def again(self, fake: torch.Tensor, memories: dict[int, torch.Tensor]) -> torch.Tensor:
        """Another tensor with the sizes, strides and dtype of a fake one.

        Args:
            fake: what to make again.
            memories: by `storage_key`, the tensor whose memory takes the place of a fake one's. It
                is given new memory if there is none, which is added.
        """
        key = storage_key(fake)
        made = _made_again(fake, memories.get(key))
        memories.setdefault(key, made)
        return made

    def conditions(self) -> list[str]:
        """What must hold of the symbols for what was computed with them.

        Returns:
            expressions of Python, with the names of the symbols.
        """
        return [in_python(guard.expr, self._names) for guard in self._shapes.guards]


def made_again(
    fake: Any, base: torch.Tensor | None = None, strides: Sequence[Any] | None = None
) -> torch.Tensor:
    """Another tensor with the sizes, strides and dtype of a fake one, which says nothing else.

    Args:
        fake: what to make again; without `base`, `copy_on_write.AVAILABLE` must hold.
        base: whose memory it shows. Default None, which means memory of its own.
        strides: those that it has in the memory of `base`. Default None, which means the same.
    """
    with _below(fake.fake_mode):
        return _made_again(fake, base, strides)


@contextlib.contextmanager
def _below(mode: Any) -> Iterator[None]:
    """A block in which operators see what fake tensors are made of, and note no conditions."""
    from torch._subclasses.fake_tensor import in_kernel_invocation_manager

    shapes = mode.shape_env
    # What holds for the first tensor holds for another one.
    unnoted = contextlib.nullcontext() if shapes is None else shapes.suppress_guards()
    with in_kernel_invocation_manager(mode), unnoted:
        yield


def _made_again(
    fake: Any, base: torch.Tensor | None, strides: Sequence[Any] | None = None
) -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensor

    if base is None:
        copy = torch._lazy_clone(fake)
    else:
        strides = fake.stride() if strides is None else strides
        copy = base.as_strided(fake.shape, strides, fake.storage_offset())
    made: torch.Tensor = FakeTensor(fake.fake_mode, copy, fake.fake_device)
    return made


def is_plain_fake(value: Any) -> bool:
    """Whether sizes, strides and dtype say all of a fake tensor."""
    return (
        is_fake(value)
        and value.constant is None
        and value.layout is torch.strided
        and not (value.is_conj() or value.is_neg() or value.requires_grad)
    )


@functools.cache
def _mode_class() -> Any:
    """A fake mode that makes results of equal calls as copies of the first one.

    PyTorch keeps sizes and strides of a result, and gives each new one memory of these sizes. With
    symbols that is arithmetic of 0.5 ms. A copy takes the symbols as they are.
    """
    from torch._subclasses.fake_tensor import (
        FakeTensor,
        FakeTensorMode,
        in_kernel_invocation_manager,
    )

    class CopyingMode(FakeTensorMode):
        def __init__(self, shape_env: Any) -> None:
            super().__init__(shape_env=shape_env)
            self._unnoted = shape_env.suppress_guards
            # By the `id` of what PyTorch keeps of the first call, which must live as long.
            self._firsts: dict[int, tuple[Any, torch.Tensor]] = {}

        def _get_output_tensor_from_cache_entry(
            self, state: Any, entry: Any, key: Any, func: Any, args: Any
        ) -> Any:
            """The result of a call that equals an earlier one."""
            _, first = self._firsts.get(id(entry), (None, None))
            if first is None:
                made: Any = super()._get_output_tensor_from_cache_entry(
                    state, entry, key, func, args
                )
                if entry.metadata is not None and _is_plain(made, entry, args):
                    with in_kernel_invocation_manager(self):
                        self._firsts[id(entry)] = entry, made.detach()
                return made
            # What holds for the first call holds for this one.
            with in_kernel_invocation_manager(self), self._unnoted():
                if entry.view_idx is None:
                    copy = torch._lazy_clone(first)
                else:
                    base = args[entry.view_idx]
                    copy = base.as_strided(first.shape, first.stride(), first.storage_offset())
            return FakeTensor(self, copy, entry.metadata.device)

    return CopyingMode if copy_on_write.AVAILABLE else FakeTensorMode


def _is_plain(made: torch.Tensor, entry: Any, args: Any) -> bool:
    """Whether sizes, strides and dtype say all of a result."""
    if made.layout is not torch.strided or made.is_conj() or made.is_neg() or made.requires_grad:
        return False
    return entry.view_idx is None or made.dtype is args[entry.view_idx].dtype


def fake_mode(**options: Any) -> Any:
    """A new mode of tensors without numbers."""
    make = find("torch._subclasses.fake_tensor.FakeTensorMode", "compute shapes without numbers")
    return make(**options)


def in_python(expression: Any, names: dict[Any, str]) -> str:
    """An expression of symbolic sizes as Python writes it, with these names of its symbols."""
    return str(_printer()(names).doprint(expression))


@functools.cache
def _printer() -> Any:
    from torch.utils._sympy.printers import PythonPrinter

    class Printer(PythonPrinter):
        def __init__(self, names: dict[Any, str]) -> None:
            super().__init__()
            self._names = names

        def _print_Symbol(self, symbol: Any) -> str:
            return self._names[symbol]

    return Printer


def is_fake(value: object) -> bool:
    """Whether a value is a tensor without numbers."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)
