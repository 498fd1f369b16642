"""A fused graph for a module that keeps its own attributes.

`optimize` freezes weights. Here the module belongs to the user, who may change it at any time, also
through `.data` and NumPy, which cannot be noticed. So the fused graph keeps no weight: each call
reads the attributes of the module, and compares the numbers that the rewrite relied on with their
old values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fusewheel._torch import jit
from fusewheel.jit.entry import examples_of
from fusewheel.jit.graph.nodes import nodes_in
from fusewheel.jit.graph.passes import TorchScript, held, simplify
from fusewheel.jit.guarded import definition
from fusewheel.jit.inference import InferenceModule, can_run_below
from fusewheel.jit.inputs import Assumptions, UnsupportedInput
from fusewheel.jit.lower import NotLowered, lower

_NUMBERS = (bool, int, float)


@dataclass(frozen=True)
class Live:
    """What runs instead of a module.

    Attributes:
        module: takes the inputs of the module; inputs unlike the example go to the module itself.
        holds: whether the attributes are still those that the fused graph relies on.
        requires_grad: whether an attribute requires a gradient.
        unit: owns the fused graph, because `module` does not keep it alive.
    """

    module: TorchScript
    holds: Callable[[], bool]
    requires_grad: Callable[[], bool]
    unit: Any


def live(module: TorchScript, example_inputs: Mapping[str, Any]) -> Live | None:
    """A module that runs fused operators, and reads the attributes of `module` at each call.

    Args:
        module: a scripted, traced or loaded module in evaluation mode.
        example_inputs: the inputs of its ``forward``, by name.

    Returns:
        the module; None if nothing is recognised, or if calls change an attribute.
    """
    arguments = jit.forward_of(module).schema.arguments[1:]
    graph = module.inlined_graph
    if graph.findAllNodes("prim::SetAttr"):  # type: ignore[attr-defined]
        return None
    try:
        assumptions = Assumptions(arguments, examples_of(module, arguments, example_inputs) or [])
        attributes = _lifted(graph, module)
        kept = [_kept(assumptions, attribute) for attribute in attributes]
        _insert_numbers(graph, attributes)
        simplify(graph)
        report = lower(graph, assumptions, [*assumptions.values, *kept])
    except (UnsupportedInput, NotLowered):
        return None
    if not report.count():
        return None
    opaque = any(value is ... for value in kept)
    return _beside(module, graph, arguments, assumptions, attributes, opaque)


@dataclass(frozen=True)
class _Attribute:
    """An attribute that a graph reads: a name, the expression that reads it, and its value."""

    name: str
    source: str
    value: Any


def _lifted(graph: jit.Graph, module: TorchScript) -> list[_Attribute]:
    """Turns attributes into inputs of the graph, which then has no module among its inputs."""
    whole = next(iter(graph.inputs()))
    places = {whole.unique(): ("self.original", module._c)}
    inputs: dict[str, jit.Value] = {}
    attributes: list[_Attribute] = []
    reads = []
    for node in nodes_in(graph):
        if node.kind() != "prim::GetAttr" or node.inputsAt(0).unique() not in places:
            continue
        reads.append(node)
        source, owner = places[node.inputsAt(0).unique()]
        source = f'getattr({source}, "{node.s("name")}")'
        value = owner.getattr(node.s("name"))
        if isinstance(value, jit.ScriptModule):
            places[node.output().unique()] = source, value
            continue
        if source not in inputs:
            inputs[source] = graph.addInput()
            inputs[source].setType(node.output().type())
            attributes.append(_Attribute(f"attribute_{len(attributes)}", source, value))
        node.output().replaceAllUsesWith(inputs[source])
    for node in reversed(reads):
        if node.output().uses():
            raise NotLowered(f"the module {node.s('name')} is used as a whole")
        node.destroy()
    if whole.uses():
        raise NotLowered("the module is used as a whole")
    graph.eraseInput(0)
    return attributes


def _kept(assumptions: Assumptions, attribute: _Attribute) -> Any:
    try:
        return assumptions.keep(attribute.name, attribute.value)
    except UnsupportedInput:  # it is passed on, and nothing is assumed about it
        return ...


def _insert_numbers(graph: jit.Graph, attributes: list[_Attribute]) -> None:
    inputs = list(graph.inputs())[-len(attributes) :] if attributes else []
    for value, attribute in zip(inputs, attributes, strict=True):
        if isinstance(attribute.value, _NUMBERS) and value.type().kind() != "OptionalType":
            with graph.insert_point_guard(next(iter(graph.nodes()))):
                constant = graph.insertConstant(attribute.value)  # type: ignore[attr-defined]
            value.replaceAllUsesWith(constant)


def _beside(
    module: TorchScript,
    graph: jit.Graph,
    arguments: list[torch.Argument],
    assumptions: Assumptions,
    attributes: list[_Attribute],
    opaque: bool,
) -> Live:
    holder = torch.nn.Module().eval()  # before it holds the module, parts of which may train
    holder.original = held(module._c)
    # With a type of its own: methods belong to the type, which equal modules would share.
    result: TorchScript = jit.of_its_own_type(holder)
    unit: Any = jit.CompilationUnit()
    names = {"torch": torch, "fused": unit.create_function("fused", graph)}
    reads = "".join(f"    {a.name} = {a.source}\n" for a in attributes)
    asked = " or ".join(f"{name}.requires_grad" for name in assumptions.kept_tensors) or "False"
    given = [argument.name for argument in arguments]
    taken = ", ".join([*given, *(attribute.source for attribute in attributes)])
    for source in (
        f"def holds(self) -> bool:\n{reads}    return {assumptions.kept()}\n",
        f"def requires_grad(self) -> bool:\n{reads}    return {asked}\n",
        definition("forward", ["self"], arguments, assumptions, f"fused({taken})")
        + f"    return self.original({', '.join(given)})\n",
    ):
        result._c._define(result._concrete_type, source, names.get)
    # An attribute without assumptions may contain a tensor that requires a gradient.
    if not opaque and can_run_below(result.inlined_graph):
        object.__setattr__(result, "__class__", InferenceModule)
    method = result._c._get_method
    return Live(result, method("holds"), method("requires_grad"), unit)
