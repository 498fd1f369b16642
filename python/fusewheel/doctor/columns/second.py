"""Second derivatives: as gradgradcheck sees them, and those that are lost without an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradgradcheck

from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, Tensors, quiet
from fusewheel.doctor.column import Column, Finding, Refused, applies
from fusewheel.doctor.columns.autograd import THEME, exact, last_lines
from fusewheel.doctor.columns.memory import has_graph

# Of finite differences: the step, the largest relative error of a derivative, and the part of a
# gradient below which its change is rounding.
FINE = (1e-6, 1e-3, 1e-5)
COARSE = (1e-2, 1e-1, 1e-2)


def _gradgradcheck(case: Case) -> None:
    has_graph(case)
    wide = exact(case)
    # gradgradcheck would take the error of once_differentiable for a derivative of zero.
    for gradient in _Gradients(wide).recorded():
        gradient.sum().backward(retain_graph=True)
    try:
        gradgradcheck(wide.function, wide.leaves(), check_undefined_grad=False)
    except GradcheckError as error:
        raise Finding(traps.WRONG_SECOND, last_lines(error)) from error


class _Gradients:
    """Gradients of a case, as a function of its floating tensors and of the gradients of its
    outputs: backward may detach either.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        outputs = [o.detach() for o in case.function(*case.leaves()) if o.requires_grad]
        self.variables = (*(case.tensors[i] for i in case.floating), *case.along(outputs))
        names = [f"tensor {i}" for i in case.floating]
        self.names = (*names, *(f"the gradient of output {i}" for i in range(len(outputs))))

    def at(self, variables: Sequence[Tensor], graph: bool) -> Tensors:
        """Those of all floating tensors."""
        tensors, count = list(self.case.tensors), len(self.case.floating)
        for i, tensor in zip(self.case.floating, variables[:count], strict=True):
            tensors[i] = tensor
        outputs = [o for o in self.case.function(*tensors) if o.requires_grad]
        inputs = variables[:count]
        found = torch.autograd.grad(
            outputs, inputs, variables[count:], create_graph=graph, allow_unused=True
        )
        return tuple(
            torch.zeros_like(t) if g is None else g for g, t in zip(found, inputs, strict=True)
        )

    def leaves(self) -> Tensors:
        """The variables, each of which requires a gradient."""
        return tuple(t.detach().clone().requires_grad_() for t in self.variables)

    def recorded(self) -> list[Tensor]:
        """Those that have a graph."""
        return [g for g in self.at(self.leaves(), graph=True) if g.requires_grad]


def _detached(case: Case) -> None:
    """What finite differences say of a gradient, autograd says too."""
    has_graph(case)
    case = case.exact
    small = {torch.float16, torch.bfloat16} & {t.dtype for t in case.tensors}
    applies(not small, "takes neither float32 nor float64")
    double = all(case.tensors[i].dtype == torch.float64 for i in case.floating)
    step, relative, rounding = FINE if double else COARSE
    gradients = _Gradients(case)
    directions = case.along(gradients.variables)
    leaves = gradients.leaves()
    recorded = gradients.at(leaves, graph=True)
    weights = case.along(recorded)
    slopes = [_slopes(g, w, leaves, directions) for g, w in zip(recorded, weights, strict=True)]
    for j, direction in enumerate(directions):
        ends = []
        for sign in (1, -1):
            moved = list(gradients.leaves())
            moved[j] = (moved[j].detach() + sign * step * direction).requires_grad_()
            ends.append(gradients.at(moved, graph=False))
        for i, (up, down, weight) in enumerate(zip(*ends, weights, strict=True)):
            parts = (up - down).double() / (2 * step) * weight
            want, got = float(parts.sum()), slopes[i][j]
            noise = rounding * float((up * weight).abs().sum())
            if abs(got - want) > relative * float(parts.abs().sum()) + noise:
                trap = traps.WRONG_SECOND if got else traps.LOST_SECOND
                raise Finding(
                    trap,
                    f"the gradient of {gradients.names[i]} changes with {gradients.names[j]}: "
                    f"its derivative in one direction is {want:.4g} by finite differences, "
                    f"{got:.4g} by autograd",
                )


def _slopes(
    gradient: Tensor, weight: Tensor, leaves: Tensors, directions: Tensors
) -> tuple[float, ...]:
    """The derivative of one gradient along each of the variables."""
    for leaf in leaves:
        leaf.grad = None
    if gradient.requires_grad:
        # Not autograd.grad, which does not come by the error of once_differentiable.
        (gradient * weight).sum().backward(retain_graph=True)
    return tuple(
        0.0 if leaf.grad is None else float((leaf.grad * direction).sum())
        for leaf, direction in zip(leaves, directions, strict=True)
    )


@contextmanager
def _refusing() -> Iterator[None]:
    """A region in which an operator may say that it has no second derivative."""
    try:
        with quiet():
            yield
    except RuntimeError as error:
        if "once_differentiable" not in str(error):
            raise
        raise Refused("marked with once_differentiable: no second derivative") from error


def _second(case: Case) -> None:
    with _refusing():
        _gradgradcheck(case)


def _lost(case: Case) -> None:
    with _refusing():
        _detached(case)


COLUMNS = (
    Column("second", THEME, "second derivatives (gradgradcheck)", _second),
    Column("detached", THEME, "no second derivative is zero without an error", _lost),
)
