"""A graph that is ready to run as text and tensors, and back.

`torch.load` reads both without executing anything. The text is JSON, which Python reads faster.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from fusewheel._torch.fx import module_of
from fusewheel.compiler.ir.metadata import BOUND, CONSTANT, FAILED
from fusewheel.compiler.store.names import name_of, named
from fusewheel.engine import bind

_PLAIN = bool, int, float, str, type(None)
# Each is an attribute of torch.
_OF_TORCH = torch.dtype, torch.memory_format, torch.layout
_MADE: dict[str, Callable[[Any], Any]] = {
    "torch": functools.partial(getattr, torch),
    "device": torch.device,
    "ellipsis": lambda _: ...,
}


class Record(NamedTuple):
    """What a file holds of a graph.

    Attributes:
        nodes: JSON.
        tensors: its constants, and the programs in it.
    """

    nodes: str
    tensors: list[Tensor]


class Unstorable(Exception):
    """Raised for a graph with something in it that no file can hold."""


def record_of(gm: GraphModule, weights: int) -> Record:
    """A graph as text and tensors.

    Args:
        gm: a graph that became a function, see `fusewheel.compiler.run.execute`.
        weights: how many of its first inputs are tensors that the function has already.

    Raises:
        Unstorable: if an argument or an attribute is of another kind.
        Unnamed: if a function has no name that another process would know.
    """
    if FAILED in gm.meta:
        raise Unstorable("an error left a part of it as it was; another process may do better")
    numbers = {node: number for number, node in enumerate(gm.graph.nodes)}
    inputs = gm.graph.find_nodes(op="placeholder")
    places = {node: place for place, node in enumerate(inputs[:weights])}
    nodes: list[dict[str, Any]] = []
    tensors: list[Tensor] = []
    for node in gm.graph.nodes:
        entry: dict[str, Any] = {
            "op": node.op,
            "name": node.name,
            "target": name_of(node.target) if node.op == "call_function" else node.target,
            "args": [_plain(argument, numbers) for argument in node.args],
            "kwargs": {name: _plain(value, numbers) for name, value in node.kwargs.items()},
            "line": node.meta.get("stack_trace"),
        }
        if CONSTANT in node.meta:
            entry["constant"] = len(tensors)
            tensors.append(node.meta[CONSTANT])
        elif BOUND in node.meta:
            program, held = node.meta[BOUND]
            entry |= {"value": len(tensors), "weights": [places[weight] for weight in held]}
            tensors.append(program)
        elif node.op == "get_attr":
            value = getattr(gm, node.target, None)
            if type(value) is not Tensor:
                raise Unstorable(f"{node.target} is no tensor of the graph itself")
            entry |= {"value": len(tensors), "weights": None}
            tensors.append(value)
        elif node.op == "call_module":
            raise Unstorable(f"{node.target} is a module")
        nodes.append(entry)
    return Record(json.dumps(nodes), tensors)


def graph_of(record: Record, weights: Sequence[Tensor]) -> tuple[GraphModule, dict[Node, Tensor]]:
    """The graph that a record was made of, with other weights, and the nodes that are constants.

    Args:
        record: what `record_of` returned.
        weights: the tensors that its first inputs are in every call.

    Raises:
        Unnamed: if a function is not known in this process.
    """
    graph = Graph()
    nodes: list[Node] = []
    constants: dict[Node, Tensor] = {}
    values: dict[str, Tensor] = {}
    held = iter(weights)
    for entry in json.loads(record.nodes):
        op, target = entry["op"], entry["target"]
        if op == "get_attr":
            target = f"_fusewheel_{len(values)}"
            value, places = record.tensors[entry["value"]], entry["weights"]
            values[target] = value if places is None else bind(value, [weights[i] for i in places])
        args = tuple(_argument(argument, nodes) for argument in entry["args"])
        kwargs = {name: _argument(value, nodes) for name, value in entry["kwargs"].items()}
        if op == "output":
            node = graph.output(args[0])
        else:
            called = named(tuple(target)) if op == "call_function" else target
            node = graph.create_node(op, called, args, kwargs, name=entry["name"])
        node.meta["stack_trace"] = entry["line"]
        nodes.append(node)
        if "constant" in entry:
            constants[node] = record.tensors[entry["constant"]]
        elif op == "placeholder" and (weight := next(held, None)) is not None:
            constants[node] = weight
    return module_of(graph, values), constants


def _plain(argument: Any, numbers: dict[Node, int]) -> Any:
    """An argument as data: what is neither plain nor a list is a dictionary with one key."""
    if isinstance(argument, Node):
        return {"node": numbers[argument]}
    if type(argument) is tuple:
        return {"tuple": [_plain(item, numbers) for item in argument]}
    if isinstance(argument, list):  # a graph's own kind of list, too
        return [_plain(item, numbers) for item in argument]
    if isinstance(argument, dict):
        return {"dict": [[_plain(part, numbers) for part in pair] for pair in argument.items()]}
    if type(argument) is slice:
        ends = argument.start, argument.stop, argument.step
        return {"slice": [_plain(end, numbers) for end in ends]}
    if isinstance(argument, _OF_TORCH):
        return {"torch": str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.device):
        return {"device": str(argument)}
    if argument is Ellipsis:
        return {"ellipsis": None}
    if type(argument) not in _PLAIN:
        raise Unstorable(f"an argument is a {type(argument).__name__}")
    return argument


def _argument(plain: Any, nodes: Sequence[Node]) -> Any:
    if isinstance(plain, list):
        return [_argument(item, nodes) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, value),) = plain.items()
    if kind in _MADE:
        return _MADE[kind](value)
    if kind == "node":
        return nodes[value]
    items = [_argument(item, nodes) for item in value]
    if kind == "slice":
        return slice(*items)
    return dict(items) if kind == "dict" else tuple(items)
