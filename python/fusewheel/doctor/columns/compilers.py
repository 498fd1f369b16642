"""opcheck, fakes, functionalisation and torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch import dynamo
from fusewheel._torch.fx import fake_mode
from fusewheel._torch.overloads import OpOverload
from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, Tensors, quiet
from fusewheel.doctor.column import Column, Finding, NotApplicable, applies
from fusewheel.doctor.columns.memory import gradients, has_graph, same

THEME = "compilers"
# What two larger cases are larger by.
FACTORS = (5, 7)
# What a fake promises of a tensor. Without elements, strides say nothing.
PROMISES: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda t: t.shape,
    "dtype": lambda t: t.dtype,
    "stride": lambda t: t.stride() if t.numel() else None,
}


def overload(case: Case) -> OpOverload:
    """The operator in `torch.ops`; ends the check for a Python function."""
    call = case.subject.call
    if not isinstance(call, OpOverload):
        raise NotApplicable("not a dispatcher operator")
    return call


def own(case: Case) -> Tensors:
    """Copies of the tensors, so that tracers see no views."""
    return tuple(t.clone() for t in case.tensors)


def _opcheck(case: Case) -> None:
    op = overload(case)
    applies(op.namespace != "aten", "opcheck is for custom operators")
    for grad in (False, True):
        leaves = [
            t.detach().requires_grad_(grad and t.is_floating_point() and i not in case.written)
            for i, t in enumerate(case.tensors)
        ]
        try:
            with quiet():
                torch.library.opcheck(op, case.given(leaves))
        except Exception as error:
            trap = traps.diagnosed(error, traps.OPCHECK)
            raise Finding(trap, str(error).strip()[:600]) from error


def _promises(case: Case, promised: Tensors) -> None:
    for i, (real, fake) in enumerate(zip(case.results(), promised, strict=True)):
        for what, of in PROMISES.items():
            if of(real) != of(fake):
                told = f"{what} of output {i}: {of(fake)} promised, {of(real)} given"
                raise Finding(traps.WRONG_FAKE, told)


def _fake(case: Case) -> None:
    with fake_mode() as mode, quiet():
        fakes = [mode.from_tensor(t) for t in case.tensors]
        try:
            promised = case.function(*fakes)
        except Exception as error:
            trap = traps.diagnosed(error, traps.NO_FAKE)
            raise Finding(trap, str(error).strip()[:600]) from error
    _promises(case, promised)


def _meta(case: Case) -> None:
    overload(case)
    try:
        with quiet():
            promised = case.function(*(t.to("meta") for t in case.tensors))
    except Exception as error:
        trap = traps.diagnosed(error, traps.NO_FAKE)
        raise Finding(trap, str(error).strip()[:600]) from error
    _promises(case, promised)


def _functional(case: Case) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    applies(not case.subject.random, "random")
    with quiet():
        graph = make_fx(torch.func.functionalize(case.function))(*own(case))
        same(tuple(graph(*own(case))), case.results(), traps.COMPILED_VALUES)


def compiled(case: Case, **settings: Any) -> tuple[Callable[..., Tensors], Any]:
    """The function, compiled as one graph; an error names what breaks the graph."""
    torch.compiler.reset()
    counter = dynamo.counting_backend("aot_eager")
    function = torch.compile(case.function, backend=counter, fullgraph=True, **settings)

    def run(*tensors: Tensor) -> Tensors:
        try:
            with quiet():
                return function(*tensors)
        except Exception as error:
            of_dynamo = dynamo.is_error_of_dynamo(error)
            told = _graph_break(case, error) if of_dynamo else error
            raise told from error.__cause__

    return run, counter


def _graph_break(case: Case, error: BaseException) -> Finding:
    text = str(error).strip()
    trap = traps.diagnosed(error, traps.GRAPH_BREAK)
    if trap is traps.GRAPH_BREAK and case.subject.schema is None:
        with quiet():
            outputs = case.function(*case.leaves())
        if any(isinstance(o.grad_fn, torch.autograd.function.BackwardCFunction) for o in outputs):
            trap = traps.OPAQUE_FUNCTION
    return Finding(trap, text[:600])


def _compile(case: Case) -> None:
    applies(not case.subject.random, "random")
    run, _ = compiled(case)
    same(run(*own(case)), case.results(), traps.COMPILED_VALUES)


def _compile_backward(case: Case) -> None:
    has_graph(case)
    run, _ = compiled(case)
    same(gradients(case, run), gradients(case), traps.COMPILED_VALUES)


def _forward(case: Case, function: Callable[..., Any] | None = None) -> Tensors:
    results: Tensors = (function or case.function)(*own(case))
    return results


def _compile_dynamic(case: Case) -> None:
    """Two sizes must give one graph, with gradients if the operator has them."""
    applies(not case.subject.random, "random")
    sizes = grown(case)
    frames: list[int] = []
    run, counter = compiled(case, dynamic=True)
    try:
        has_graph(case)
        results = gradients
    except NotApplicable:
        results = _forward
    # Only sizes change here; numbers that are arguments stay constants.
    with dynamo.configured(specialize_int=True):
        for larger in sizes:
            same(results(larger, run), results(larger), traps.COMPILED_VALUES)
            frames.append(counter.frame_count)
    # A float argument alone makes Dynamo trace its first frame twice.
    if frames[0] != frames[1]:
        raise Finding(traps.RECOMPILES, f"{frames[1]} graphs for two sizes")


def leading(case: Case) -> int:
    """The size that grows: the first dimension of the first tensor that has a dimension."""
    sizes = [t.shape[0] for t in case.tensors if t.dim() and t.shape[0] > 1]
    applies(bool(sizes), "no dimension of more than one element")
    return sizes[0]


def grown(case: Case) -> tuple[Case, Case]:
    """Two larger cases, with sizes that no other dimension has: equal sizes would be one symbol."""
    old = leading(case)
    first, second = (case.resized(old, old * factor) for factor in FACTORS)
    if first is None or second is None:
        raise NotApplicable("the leading dimension cannot grow")
    return first, second


COLUMNS = (
    Column("opcheck", THEME, "torch.library.opcheck", _opcheck, most=1),
    Column("fake", THEME, "fake tensors: shape, dtype, strides", _fake),
    Column("meta", THEME, "meta tensors", _meta),
    Column("functional", THEME, "functionalisation", _functional, most=1),
    Column("compile", THEME, "torch.compile in one graph", _compile, most=1),
    Column("compiled backward", THEME, "gradients when compiled", _compile_backward, most=1),
    Column("compiled sizes", THEME, "no recompile for a second size", _compile_dynamic, most=1),
)
