"""`optimize`: a TorchScript module with fused operators."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from fusewheel._torch import jit
from fusewheel.compiler.match.report import Report
from fusewheel.jit.graph.passes import TorchScript, frozen, graph_of
from fusewheel.jit.guarded import guarded
from fusewheel.jit.inputs import Assumptions, UnsupportedInput
from fusewheel.jit.lower import NotLowered, lower
from fusewheel.jit.result import Lowered
from fusewheel.jit.static import StaticModel
from fusewheel.jit.support import require_torchscript

_log = logging.getLogger("fusewheel.jit")


Example = Tensor | Sequence[Any] | Mapping[str, Any] | None
Runtime = Literal["interpreter", "engine", "static"]


@overload
def optimize(
    module: torch.nn.Module | TorchScript,
    example_inputs: Example = None,
    *,
    runtime: Literal["interpreter", "engine"] = "interpreter",
) -> TorchScript: ...


@overload
def optimize(
    module: torch.nn.Module | TorchScript,
    example_inputs: Example = None,
    *,
    runtime: Literal["static"],
) -> StaticModel: ...


def optimize(
    module: torch.nn.Module | TorchScript,
    example_inputs: Example = None,
    *,
    runtime: Runtime = "interpreter",
) -> TorchScript | StaticModel:
    """Freeze a module and replace parts of its TorchScript graph by fused operators.

    The compiler's patterns decide what is replaced. The operators run on inputs that are like the
    example: they have its dtypes, devices and ranks, are contiguous, require no gradient, and
    autocast is off. Sizes may differ from the example, but a size of 0 or 1 must be the same; so
    give an example without sizes of 1 if other sizes may come. All other inputs run the frozen
    graph without fused operators, with the same values.

    Args:
        module: a scripted, traced or plain module in evaluation mode. A plain module is scripted,
            or, if that fails, traced with the example.
        example_inputs: positional arguments of one call (a tensor, or a sequence), or keyword
            arguments as a mapping. Default None: the inputs that the module was traced with, unless
            it was saved and loaded since.
        runtime: ``"interpreter"`` (default) for a TorchScript module; ``"engine"`` for one that
            runs as much as possible in programs of the engine, on a CPU; ``"static"`` for PyTorch's
            static runtime, which plans the memory of a graph without control flow, on a CPU.

    Returns:
        A new module for inference, with ``forward`` only. It can be saved. Loading it needs the
        kernel library (``torch.ops.load_library``), but not this package. With the static runtime
        it is a `StaticModel`, whose attribute ``scripted`` can be saved.

    Raises:
        ValueError: the module is in training mode, the example does not fit its ``forward``, or
            `runtime` is not one of the three.
        TypeError: `module` is not a module.
        TorchScriptError: this Python has no TorchScript, or the static runtime cannot run the
            graph.

    Warns:
        UserWarning: there is no example, so nothing can be replaced.
    """
    if runtime not in ("interpreter", "engine", "static"):
        raise ValueError(
            "fusewheel.jit.optimize: runtime must be 'interpreter', 'engine' or 'static', got "
            f"{runtime!r}"
        )
    result = lowered(module, example_inputs, programs=runtime == "engine")
    if runtime == "static":
        return StaticModel(result)
    if result.reason:
        warnings.warn(f"fusewheel.jit.optimize: {result.reason}", UserWarning, stacklevel=2)
    return result.module


def lowered(module: Any, example_inputs: Any = None, *, programs: bool = False) -> Lowered:
    """`optimize`, returning everything that is known about the result.

    With `programs`, parts of the graph become programs of the engine; default False.
    """
    require_torchscript()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            "fusewheel.jit.optimize: module must be a torch.nn.Module or a TorchScript module, got "
            f"{type(module).__name__}"
        )
    if getattr(module, "training", False):
        raise ValueError(
            "fusewheel.jit.optimize: module is in training mode, and the result could not be "
            "trained because it is frozen; call module.eval() first, or train with "
            "torch.compile(model, backend='fusewheel')"
        )
    script = _scripted(module, example_inputs)
    original = frozen(script)
    arguments = jit.forward_of(script).schema.arguments[1:]
    examples = examples_of(script, arguments, example_inputs)
    if examples is None:
        reason = "example_inputs are needed to tell dtypes and sizes"
        return _unchanged(original, arguments, reason)
    try:
        assumptions = Assumptions(arguments, examples)
        fused = frozen(script)
        values = [..., *assumptions.values]
        graph = graph_of(fused)
        report = lower(graph, assumptions, values)
        made = _with_programs(graph, assumptions, values) if programs else []
        if not report.count() and not any(part.lowered for part in made):
            return Lowered(original, original, arguments, assumptions, report=report)
        result = guarded(fused, original, arguments, assumptions)
    except (UnsupportedInput, NotLowered) as error:
        return _unchanged(original, arguments, str(error))
    except Exception as error:
        # Losing a rewrite is better than losing the user's model.
        if os.environ.get("FUSEWHEEL_COMPILER_STRICT"):
            raise
        _log.warning("the module is left without fused operators", exc_info=True)
        return _unchanged(original, arguments, f"the rewrite failed: {error}", failed=True)
    _log.info("%s", report)
    return Lowered(result, original, arguments, assumptions, fused, report)


def _with_programs(graph: jit.Graph, assumptions: Assumptions, values: Sequence[Any]) -> list[Any]:
    from fusewheel.jit.programs import insert_programs  # loads what writes programs

    return insert_programs(graph, assumptions, values)


def _unchanged(
    original: TorchScript, arguments: Sequence[torch.Argument], reason: str, failed: bool = False
) -> Lowered:
    reason = f"nothing is replaced: {reason}"
    return Lowered(original, original, arguments, reason=reason, failed=failed)


def explain(module: torch.nn.Module | TorchScript, example_inputs: Example = None) -> Report:
    """What `optimize` replaces in a module, and why it does not replace the rest.

    Args:
        module: as for `optimize`.
        example_inputs: as for `optimize`.

    Returns:
        the report; printing it gives a table.

    Raises:
        ValueError: as for `optimize`.
        TypeError: as for `optimize`.
        TorchScriptError: as for `optimize`.
    """
    return lowered(module, example_inputs).report


def _scripted(module: torch.nn.Module, example_inputs: Any) -> TorchScript:
    if isinstance(module, torch.jit.ScriptModule):
        return module
    try:
        return torch.jit.script(module)
    except Exception as error:
        # Scripting has no exception type of its own, so any error means that it failed.
        if example_inputs is None:
            raise ValueError(
                f"fusewheel.jit.optimize: {type(module).__name__} cannot be scripted, and tracing "
                "it needs example_inputs"
            ) from error
        _log.info("%s cannot be scripted and is traced", type(module).__name__, exc_info=True)
    named = isinstance(example_inputs, Mapping)
    given = {"example_kwarg_inputs": dict(example_inputs)} if named else {}
    inputs = None if named else _positional(example_inputs)
    traced: TorchScript = torch.jit.trace(module, inputs, strict=False, check_trace=False, **given)
    return traced


def _positional(example_inputs: Any) -> tuple[Any, ...]:
    return (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)


def examples_of(
    script: TorchScript, arguments: Sequence[torch.Argument], example_inputs: Any
) -> list[Any] | None:
    """Example values of all inputs, with defaults filled in; None if there is no example."""
    names = [argument.name for argument in arguments]
    if example_inputs is None:
        example_inputs = dict(script._c._retrieve_traced_inputs().items()).get("forward")
        if example_inputs is None and arguments:
            return None
    if isinstance(example_inputs, Mapping):
        given = dict(example_inputs)
        unknown = [f"'{name}'" for name in given if name not in names]
    else:
        positional = _positional(() if example_inputs is None else example_inputs)
        given = dict(zip(names, positional, strict=False))
        unknown = [f"a value number {i + 1}" for i in range(len(names), len(positional))]
    if unknown:
        raise ValueError(
            f"fusewheel.jit.optimize: forward takes {names}, example_inputs has "
            f"{', '.join(unknown)} too"
        )
    missing = [a.name for a in arguments if a.name not in given and not a.has_default_value()]
    if missing:
        raise ValueError(
            f"fusewheel.jit.optimize: forward takes {names}, example_inputs lacks {missing}"
        )
    return [given.get(a.name, a.default_value) for a in arguments]
