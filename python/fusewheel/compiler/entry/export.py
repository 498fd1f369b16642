"""`export`: a model as an ExportedProgram with fused operators."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fusewheel._core.arguments import require_module
from fusewheel._core.progress import working
from fusewheel._torch.dynamo import counters
from fusewheel._torch.fx import telling_of_replacements
from fusewheel.compiler.entry.captured import replacing
from fusewheel.compiler.ir.metadata import inference
from fusewheel.compiler.match.report import Recorder, Report
from fusewheel.compiler.match.rewrite import rewrite

if TYPE_CHECKING:
    from torch.export import ExportedProgram

# The key in a graph module's metadata for the report of what was replaced in it.
_REPORT = "fusewheel"


def export(
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    training: bool = False,
    engine: bool = False,
) -> ExportedProgram:
    """Export a model as an ExportedProgram with fused operators.

    The program has the inputs, outputs, parameters, buffers, mutations and dynamic dimensions that
    `torch.export.export` gives it, and supports ``run_decompositions``, ``torch.export.save`` and
    AOTInductor. A process that loads it needs the kernel library. `fusewheel.explain` prints what
    was replaced, and why the rest was not.

    Args:
        model: a module, or a program that was exported before, which is not changed.
        args: positional example inputs of a module; default ().
        kwargs: keyword example inputs of a module; default None.
        dynamic_shapes: as for ``torch.export.export``; default None, which fixes every size.
        strict: whether Dynamo captures the module, as for ``torch.export.export``; default False.
        training: whether the program will be trained, which decides which replacements are faster.
            Gradients are correct either way. Default False.
        engine: whether parts of the program become programs of the engine, which runs them on a CPU
            without Python and without Inductor. Such a program is for inference: call it, and make
            packages of it, under ``torch.no_grad()``. Default False.

    Returns:
        the program; it shares the parameters of `model`.

    Raises:
        TypeError: if `model` is neither a module nor a program; or if example inputs or shapes are
            given for a program.
        ValueError: if `engine` and `training` are both asked for; or if an exported program keeps
            the call signatures of its submodules, because an operator may do the work of several
            submodules.
        Exception: what ``torch.export.export`` raises for the model and these inputs.
    """
    from torch.export import ExportedProgram

    if engine and training:
        raise ValueError("export: engine=True is for inference, and cannot be trained")
    if isinstance(model, ExportedProgram):
        if args or kwargs or dynamic_shapes is not None:
            raise TypeError(
                "export: args, kwargs and dynamic_shapes are for a module; an ExportedProgram has "
                "its own"
            )
        program = _copy(model)
    else:
        model = getattr(model, "_orig_mod", model)
        require_module("export", model)
        with replacing(), working("fusewheel: exporting a model: PyTorch captures it"):
            program = torch.export.export(
                model,
                args,
                None if kwargs is None else dict(kwargs),
                dynamic_shapes=dynamic_shapes,
                strict=strict,
            )
    with working(f"fusewheel: exporting a graph of {len(program.graph.nodes):,} nodes"):
        report = _rewrite(program, training)
        if engine:
            from fusewheel.compiler.lower.exported import lower_exported

            lower_exported(program)
            program.validate()
    counters()["fusewheel"].update(report.counts())
    return program


def explain_program(program: ExportedProgram) -> Report:
    """What `export` replaced in a program, or would replace in a program of `torch.export`."""
    known = program.graph_module.meta.get(_REPORT)
    return known if isinstance(known, Report) else _rewrite(_copy(program), training=False)


def _rewrite(program: ExportedProgram, training: bool) -> Report:
    if any(entry.signature is not None for entry in program.module_call_graph if entry.fqn):
        raise ValueError(
            "export: a program exported with preserve_module_call_signature cannot be rewritten: "
            "an operator may do the work of several submodules"
        )
    module, recorder = program.graph_module, Recorder()
    # The signature names nodes, and a node that is an output may be replaced.
    renamed = telling_of_replacements(module, program.graph_signature.get_replace_hook())
    with renamed, contextlib.nullcontext() if training else inference():
        report = rewrite(module, recorder=recorder)
    program.validate()
    module.meta[_REPORT] = report
    return report


def _copy(program: ExportedProgram) -> ExportedProgram:
    """A program with a graph of its own; parameters and constants are shared."""
    module = copy.deepcopy(program.graph_module)
    return type(program)(
        root=module,
        graph=module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=program.state_dict,
        range_constraints=copy.deepcopy(program.range_constraints),
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )
