"""The transforms of torch.func, compared with a loop, autograd or finite differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, func

from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, Tensors, quiet
from fusewheel.doctor.column import Column, Finding, applies
from fusewheel.doctor.columns.autograd import compare_slopes, exact
from fusewheel.doctor.columns.memory import gradients, has_graph, same
from fusewheel.doctor.traps import Trap, diagnosed

THEME = "torch.func"
# A Jacobian has a row for every element.
LARGEST = 100


def _raising(trap: Trap, run: Callable[[], Any]) -> Any:
    """Runs a transform; an error means the mistake `trap`."""
    try:
        with quiet():
            return run()
    except RuntimeError as error:
        raise Finding(diagnosed(error, trap), str(error).strip()[:600]) from error


def _loss(case: Case) -> Callable[..., Tensor]:
    def loss(*floating: Tensor) -> Tensor:
        outputs = case.function(*_placed(case, floating))
        return torch.stack([(o * o).sum().double() for o in outputs if o.is_floating_point()]).sum()

    return loss


def _placed(case: Case, floating: Tensors) -> list[Tensor]:
    tensors = list(case.tensors)
    for i, t in zip(case.floating, floating, strict=True):
        tensors[i] = t
    return tensors


def _inputs(case: Case) -> Tensors:
    return tuple(case.tensors[i] for i in case.floating)


def _all(case: Case) -> tuple[int, ...]:
    return tuple(range(len(case.floating)))


def _floating_outputs(case: Case) -> Callable[..., Tensors]:
    return lambda *floating: tuple(
        o for o in case.function(*_placed(case, floating)) if o.is_floating_point()
    )


def _grad(case: Case) -> None:
    has_graph(case)
    transform = func.grad(_loss(case), _all(case))
    same(
        _raising(traps.NO_FUNC_RULE, lambda: transform(*_inputs(case))),
        gradients(case),
        traps.WRONG_TRANSFORM,
    )


def _vjp(case: Case) -> None:
    has_graph(case)

    def run() -> Any:
        transformed: Any = func.vjp(_floating_outputs(case), *_inputs(case))
        outputs, pull = transformed
        return pull(tuple(2 * o for o in outputs))

    same(_raising(traps.NO_FUNC_RULE, run), gradients(case), traps.WRONG_TRANSFORM)


def _jvp(case: Case) -> None:
    wide = exact(case)
    inputs = _inputs(wide)
    transform = partial(func.jvp, _floating_outputs(wide), inputs, wide.along(inputs))
    tangents = _raising(traps.NO_FUNC_RULE, transform)[1]
    outputs = wide.results()
    slope = tuple(s for s, o in zip(wide.slope, outputs, strict=True) if o.is_floating_point())
    compare_slopes(wide, tangents, slope)


def _jacobian(transform: Callable[..., Any]) -> Callable[[Case], None]:
    def check(case: Case) -> None:
        wide = exact(case)
        inputs, outputs = _inputs(wide), wide.results()
        applies(
            max(wide.size, sum(o.numel() for o in outputs)) <= LARGEST,
            f"no sample of at most {LARGEST} elements",
        )
        jacobian = _raising(
            traps.NO_FUNC_RULE,
            lambda: transform(_floating_outputs(wide), _all(wide))(*inputs),
        )
        got = tuple(
            sum(
                part.reshape(*output.shape, direction.numel()) @ direction.flatten()
                for part, direction in zip(row, wide.along(inputs), strict=True)
            )
            for row, output in zip(
                jacobian, (o for o in outputs if o.is_floating_point()), strict=True
            )
        )
        slope = tuple(s for s, o in zip(wide.slope, outputs, strict=True) if o.is_floating_point())
        compare_slopes(wide, tuple(map(torch.as_tensor, got)), slope)

    return check


def _hessian(case: Case) -> None:
    has_graph(case)
    wide = exact(case)
    applies(wide.size <= LARGEST, f"no sample of at most {LARGEST} elements")
    inputs, loss = _inputs(wide), _loss(wide)
    got = _raising(traps.NO_FUNC_RULE, lambda: func.hessian(loss)(*inputs))
    want = torch.autograd.functional.hessian(
        lambda first: loss(first, *inputs[1:]), inputs[0].contiguous()
    )
    same((got,), (want,), traps.WRONG_TRANSFORM)


def _batches(case: Case) -> list[tuple[int, ...]]:
    """The sets of tensors that get a batch dimension: all of them, and each one alone."""
    applies(not case.subject.random, "random")
    applies(bool(case.floating), "no floating tensor")
    # A written tensor without a batch dimension has no room for a batch.
    alone = [(i,) for i in case.floating] if not case.written else []
    return list(dict.fromkeys([case.floating, *alone]))


def _stacked(case: Case, which: tuple[int, ...]) -> tuple[list[Tensor], list[int | None]]:
    other = case.other_values().tensors
    tensors = [
        # Samples differ in values, order and mean, so that mixing them shows.
        torch.stack([a, b, a * 0.5]) if i in which else a
        for i, (a, b) in enumerate(zip(case.tensors, other, strict=True))
    ]
    return tensors, [0 if i in which else None for i in range(len(tensors))]


def _row(tensors: list[Tensor], dims: list[int | None], row: int) -> list[Tensor]:
    return [t if d is None else t[row] for t, d in zip(tensors, dims, strict=True)]


def _vmap(case: Case) -> None:
    case = case.exact  # in float64, because a batch may round differently than its samples
    for which in _batches(case):
        tensors, dims = _stacked(case, which)
        batched = func.vmap(case.function, tuple(dims))
        got = _raising(traps.NO_VMAP_RULE, partial(batched, *tensors))
        rows = [case.using(_row(tensors, dims, r)).results() for r in range(3)]
        same(got, tuple(torch.stack(o) for o in zip(*rows, strict=True)), traps.WRONG_TRANSFORM)


def _vmap_grad(case: Case) -> None:
    has_graph(case)
    case = case.exact
    tensors, _ = _stacked(case, case.floating)
    batched = tuple(tensors[i] for i in case.floating)
    transform = func.vmap(func.grad(_loss(case), _all(case)))
    got = _raising(traps.NO_VMAP_RULE, lambda: transform(*batched))
    rows = [gradients(case.using(_placed(case, tuple(t[r] for t in batched)))) for r in range(3)]
    same(got, tuple(torch.stack(o) for o in zip(*rows, strict=True)), traps.WRONG_TRANSFORM)


def module_of(case: Case) -> torch.nn.Module:
    """A module that has the floating tensors as parameters and returns a loss."""

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for k, t in enumerate(_inputs(case)):
                self.register_parameter(f"p{k}", torch.nn.Parameter(t.contiguous().clone()))

        def forward(self) -> Tensor:
            return _loss(case)(*self.parameters())

    return Module()


def _functional_call(case: Case) -> None:
    """Replaces a module's parameters and differentiates with respect to them."""
    has_graph(case)
    module = module_of(case).to("meta")  # where no parameter can be read that was not replaced
    given = {f"p{k}": t for k, t in enumerate(_inputs(case))}
    found = _raising(
        traps.NO_FUNC_RULE,
        lambda: func.grad(lambda p: func.functional_call(module, p, ()))(given),
    )
    same(tuple(found.values()), gradients(case), traps.WRONG_TRANSFORM)


COLUMNS = (
    Column("grad", THEME, "func.grad", _grad, most=1),
    Column("vjp", THEME, "func.vjp", _vjp, most=1),
    Column("jvp", THEME, "func.jvp", _jvp, most=1),
    Column("jacrev", THEME, "func.jacrev", _jacobian(func.jacrev), most=1),
    Column("jacfwd", THEME, "func.jacfwd", _jacobian(func.jacfwd), most=1),
    Column("hessian", THEME, "func.hessian", _hessian, most=1),
    Column("vmap", THEME, "func.vmap, over all tensors and over each", _vmap, most=1),
    Column("vmap of grad", THEME, "per-sample gradients", _vmap_grad, most=1),
    Column("functional_call", THEME, "functional_call", _functional_call, most=1),
)
