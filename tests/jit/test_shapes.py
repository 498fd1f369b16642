"""Shape functions of every operator against the shapes it really returns."""

from __future__ import annotations

import pytest
import torch
from fusewheel import ops
from fusewheel.dispatch.operator import Make, Operator
from fusewheel.jit.shapes import register_shape_functions
from oracle import tensors_of
from torch import Tensor

OPERATORS = pytest.mark.parametrize("operator", ops.operators(), ids=lambda o: o.name)


def graph_of(operator: Operator, arguments: tuple, symbolic: bool) -> torch._C.Graph:
    """One call, with the shapes of its tensors as the types of the inputs."""
    graph = torch._C.Graph()
    values = []
    for argument in arguments:
        if not isinstance(argument, Tensor):
            values.append(graph.insertConstant(argument))
            continue
        value = graph.addInput()
        value.inferTypeFrom(argument.detach())
        if symbolic:
            symbols = [torch._C._new_symbolic_shape_symbol() for _ in argument.shape]
            value.setType(value.type().with_sizes(symbols))
        values.append(value)
    count = len(operator.overload._schema.returns)
    node = graph.create(f"fusewheel::{operator.name}", values, count)
    graph.insertNode(node)
    for output in node.outputs():
        graph.registerOutput(output)
    return graph


def inferred(graph: torch._C.Graph) -> list[list[int] | None]:
    register_shape_functions()
    torch._C._jit_pass_propagate_shapes_on_graph(graph)
    return [value.type().symbolic_sizes() for value in graph.outputs()]


@OPERATORS
def test_shapes_are_those_of_the_results(operator: Operator):
    for arguments in operator.samples(Make()):
        arguments = (*arguments, *_defaults(operator)[len(arguments) :])
        results = operator.overload(*arguments)
        wanted = [] if results is None else [list(r.shape) for r in tensors_of(results)]
        assert inferred(graph_of(operator, arguments, symbolic=False)) == wanted


def _defaults(operator: Operator) -> list:
    return [argument.default_value for argument in operator.overload._schema.arguments]


@OPERATORS
def test_every_output_has_a_shape(operator: Operator):
    assert len(operator.shapes) == len(operator.overload._schema.returns)


def test_symbols_pass_through():
    register_shape_functions()
    declared = {operator.name: operator for operator in ops.operators()}
    x, weight = torch.ones(2, 3, 8), torch.ones(8)
    graph = graph_of(declared["rms_norm"], (x, weight, 1e-6, 0), symbolic=True)
    batch, length, size = next(iter(graph.inputs())).type().symbolic_sizes()
    assert max(batch, length, size) < 0  # symbols
    assert inferred(graph) == [[batch, length, size], [batch, length]]
    graph = graph_of(declared["linear"], (x, torch.ones(4, 8), None), symbolic=True)
    outer = next(iter(graph.inputs())).type().symbolic_sizes()[:2]
    assert inferred(graph)[0][:2] == outer


def test_shapes_pass_through_a_whole_module():
    from fusewheel.jit.entry import lowered

    from .nets import decoder, inputs

    register_shape_functions()
    module = torch.jit.freeze(torch.jit.script(decoder()))
    graph = lowered(module, inputs()).fused.graph
    torch._C._jit_erase_non_input_shape_information(graph)
    for value, example in zip(list(graph.inputs())[1:], inputs(), strict=True):
        value.inferTypeFrom(example)
    torch._C._jit_pass_propagate_shapes_on_graph(graph)
    assert next(iter(graph.outputs())).type().symbolic_sizes() == [2, 6, 32]
