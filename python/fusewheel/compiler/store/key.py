"""Names a graph and all else that decides what becomes of it.

Two graphs with one key become the same. So a key has every operation with its arguments, the dtype,
sizes and strides of every value, and what the rewriting asks of the machine and of PyTorch. Weights
are inputs of a graph, and their numbers decide nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fusewheel._core.backends import backends
from fusewheel._core.version import __version__
from fusewheel.compiler.cost import processor, rates
from fusewheel.compiler.ir.metadata import value_of
from fusewheel.compiler.ir.source import line_of
from fusewheel.compiler.match.registry import known_patterns
from fusewheel.compiler.match.switches import disabled
from fusewheel.compiler.patterns import all_patterns
from fusewheel.compiler.store.names import Unnamed, name_of
from fusewheel.engine import step_operators

_PLAIN = frozenset({int, bool, float, str, type(None)})
_SAID_BY_TEXT = torch.dtype, torch.device, torch.layout, torch.memory_format


def key_of(gm: GraphModule, *options: object) -> str:
    """The key of a graph that was captured for inference on a CPU.

    Args:
        gm: the graph; its nodes have example values.
        *options: what else decides, as text.

    Raises:
        Unnamed: if something in it has no name that another process would know.
    """
    text = "\n".join((*map(str, options), *_circumstances(), *_Lines(gm.graph.nodes)))
    return hashlib.sha256(text.encode()).hexdigest()


class _Lines:
    """The nodes of a graph, a line for each, then what holds of its sizes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = nodes
        self._numbers: dict[Node, int] = {}
        self._expressions: dict[Any, str] = {}
        self._hints: dict[str, int] = {}
        self._environments: dict[int, Any] = {}  # by `id`; they know the conditions on sizes

    def __iter__(self) -> Iterator[str]:
        for node in self._nodes:
            target: Any = node.target
            if node.op == "call_function":
                # An operator of another package may change.
                target = name_of(target), getattr(target, "_schema", None)
            elif node.op == "placeholder":
                target = ""
            elif node.op in ("get_attr", "call_module"):
                raise Unnamed(f"{node.target} is an attribute of the graph")
            arguments = self._text((node.args, node.kwargs))
            place = os.path.basename(line_of(node).source)
            self._numbers[node] = len(self._numbers)
            yield f"{node.op} {target} {arguments} {self._text(value_of(node))} {place}"
        # What pays depends on sizes; it is decided once for sizes of about the same magnitude.
        yield repr([(name, hint.bit_length()) for name, hint in self._hints.items()])
        for environment in self._environments.values():
            yield repr([str(guard.expr) for guard in environment.guards])

    def _text(self, value: Any) -> str:
        if type(value) in _PLAIN:
            return repr(value)
        if isinstance(value, Node):
            return f"%{self._numbers[value]}"
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if isinstance(value, (tuple, list)):
            return f"{type(value).__name__}({', '.join(map(self._text, value))})"
        if isinstance(value, dict):
            return repr({name: self._text(item) for name, item in value.items()})
        if isinstance(value, slice):
            return f"slice{self._text((value.start, value.stop, value.step))}"
        if value is Ellipsis or isinstance(value, _SAID_BY_TEXT):
            return repr(value)
        raise Unnamed(f"a {type(value).__name__} has no text that says all of it")

    def _tensor(self, tensor: Tensor) -> str:
        sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        known = ", ".join(map(self._text, sizes))
        kind = f"{type(tensor).__name__} {tensor.dtype} {tensor.device} {tensor.layout}"
        return f"{kind} {known} {tensor.requires_grad}"

    def _size(self, size: torch.SymInt) -> str:
        node = size.node
        expression = node.expr
        if expression not in self._expressions:
            self._expressions[expression] = str(expression)
            if expression.is_Symbol:
                if node.hint is None:
                    raise Unnamed(f"the size {expression} depends on numbers in tensors")
                self._hints[str(expression)] = int(node.hint)
            self._environments[id(node.shape_env)] = node.shape_env
        return self._expressions[expression]


def _circumstances() -> Iterator[str]:
    """What decides beside the graph."""
    yield _INSTALLATION
    yield repr(processor.facts())
    yield f"{torch.get_num_threads()} threads, {torch.get_default_dtype()}"
    yield f"one of several processes: {rates.is_distributed()}"
    yield repr(sorted(disabled()))
    for pattern in known_patterns():
        if pattern not in all_patterns():
            raise Unnamed(f"pattern {pattern.name!r} is of another package, which may change")
    yield repr(sorted(step_operators().items()))
    yield repr(sorted(i for i in os.environ.items() if i[0].startswith("FUSEWHEEL_COMPILER_")))


def _installation() -> str:
    """Which fusewheel, torch and Python these are; every change of fusewheel's files changes it."""
    sources = hashlib.sha256()
    for file in sorted(Path(__file__).parents[2].rglob("*.py")):
        sources.update(file.read_bytes())
    # Reading a library would take too long.
    libraries = [
        (backend.name, (about := backend.library.stat()).st_size, int(about.st_mtime))
        for backend in backends()
    ]
    versions = __version__, torch.__version__, torch.version.git_version, platform.python_version()
    return repr((versions, platform.machine(), libraries, sources.hexdigest()))


# Of the files as they are when they are imported; they may change while the process runs.
_INSTALLATION = _installation()
