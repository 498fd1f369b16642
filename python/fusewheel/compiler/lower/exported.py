"""Puts programs into an ExportedProgram."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx import Node

from fusewheel._torch.fx import telling_of_replacements
from fusewheel.compiler.ir.metadata import inference, value_of
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.lower.engine import ProgramReport, lower

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def lower_exported(program: ExportedProgram) -> list[ProgramReport]:
    """Replace parts of an exported program by programs of the engine.

    Args:
        program: for inference; it is changed in place. The bytes of the new programs become its
            constants.

    Returns:
        what was found, in order.
    """
    graph = program.graph
    # The signature names nodes, and a node that is an output may be replaced.
    renamed = telling_of_replacements(
        program.graph_module, program.graph_signature.get_replace_hook()
    )
    with renamed, inference():
        found = lower(Context(graph))
    for node in graph.find_nodes(op="get_attr"):
        if str(node.target).startswith("_fusewheel_"):
            _lift(program, node)
    graph.eliminate_dead_code()
    graph.lint()
    program.graph_module.recompile()
    return found


def _lift(program: ExportedProgram, node: Node) -> None:
    """Turn an attribute of the graph module into a constant of the program, which is an input."""
    from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

    name, module = str(node.target), program.graph_module
    tensor = getattr(module, name)
    delattr(module, name)
    specs = program.graph_signature.input_specs
    inputs = program.graph.find_nodes(op="placeholder")
    kinds = [spec.kind for spec in specs]
    place = kinds.index(InputKind.USER_INPUT) if InputKind.USER_INPUT in kinds else len(specs)
    before = inputs[place] if place < len(inputs) else node
    with program.graph.inserting_before(before):
        constant = program.graph.placeholder(f"c_{name}")
    fakes = (getattr(value_of(other), "fake_mode", None) for other in inputs)
    mode = next(fake for fake in fakes if fake is not None)
    constant.meta["val"] = mode.from_tensor(tensor, static_shapes=True)
    specs.insert(place, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(constant.name), name))
    program.constants[name] = tensor
    node.replace_all_uses_with(constant)
    program.graph.erase_node(node)
