"""Derivatives by autograd, against finite differences."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.gradcheck import GradcheckError, gradcheck

from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, Tensors, quiet
from fusewheel.doctor.column import Column, Finding, NotApplicable, applies, differentiable
from fusewheel.doctor.columns.memory import same

THEME = "autograd"
LARGEST = 200
# How far a derivative may be off, relative and absolute: in float64, and in float32.
FINE = (1e-3, 1e-4)
COARSE = (1e-1, 1e-3)


def exact(case: Case) -> Case:
    """The case in float64, if it is small enough for finite differences."""
    differentiable(case)
    applies(case.size <= LARGEST, f"no sample of at most {LARGEST} elements")
    wide = case.exact
    if any(t.dtype != torch.float64 for t in wide.tensors if t.is_floating_point()):
        raise NotApplicable("takes no float64")
    return wide.using([t.contiguous() if 0 in t.stride() else t for t in wide.tensors])


def _gradient(case: Case) -> None:
    differentiable(case)
    with quiet():
        outputs = case.exact.function(*case.exact.leaves())
    if not any(o.requires_grad for o in outputs):
        raise Finding(traps.MISSING_GRADIENT, "the result does not require a gradient")
    try:
        wide = exact(case)
    except NotApplicable:
        return _coarse(case)
    leaves = wide.leaves()
    if not _connected(wide, leaves):
        raise Finding(traps.MISSING_GRADIENT, "backward gives no gradient, or zero")
    try:
        with quiet():
            gradcheck(wide.function, leaves, check_undefined_grad=False)
    except GradcheckError as error:
        raise Finding(traps.WRONG_GRADIENT, last_lines(error)) from error


def _connected(case: Case, leaves: Tensors) -> bool:
    with quiet():
        outputs = [o for o in case.function(*leaves) if o.requires_grad]
        # A random combination, because a sum may have no gradient: that of a softmax is constant.
        loss = sum((o * s).sum() for o, s in zip(outputs, case.along(outputs), strict=True))
        assert isinstance(loss, Tensor)
        found = torch.autograd.grad(loss, [leaves[i] for i in case.floating], allow_unused=True)
    return any(g is not None and bool(g.any()) for g in found)


def _coarse(case: Case) -> None:
    """For operators without float64: compares the derivative in one direction roughly."""
    case = case.exact
    small = {torch.float16, torch.bfloat16} & {t.dtype for t in case.tensors}
    applies(not small, "takes neither float32 nor float64")
    leaves = case.leaves()
    inputs = [leaves[i] for i in case.floating]
    with quiet():
        outputs = case.function(*leaves)
        wanted = [(o, s) for o, s in zip(outputs, case.slope, strict=True) if o.requires_grad]
        seeds = case.along([o for o, _ in wanted])
        found = torch.autograd.grad([o for o, _ in wanted], inputs, seeds, allow_unused=True)
    got = sum(
        (g * d).sum().double()
        for g, d in zip(found, case.along(inputs), strict=True)
        if g is not None
    )
    want = sum((s * seed).sum().double() for (_, s), seed in zip(wanted, seeds, strict=True))
    scale = sum(s.abs().sum().double() for _, s in wanted)
    relative, absolute = COARSE
    if abs(float(got) - float(want)) > relative * float(scale) + absolute:
        trap = traps.MISSING_GRADIENT if float(got) == 0 else traps.WRONG_GRADIENT
        raise Finding(trap, f"derivative in one direction {float(got):.4g}, not {float(want):.4g}")


def _forward(case: Case) -> None:
    wide = exact(case)
    directions = dict(
        zip(wide.floating, wide.along([wide.tensors[i] for i in wide.floating]), strict=True)
    )
    with quiet(), forward_ad.dual_level():
        dual = [
            forward_ad.make_dual(t.clone(), directions[i]) if i in directions else t
            for i, t in enumerate(wide.tensors)
        ]
        results = [forward_ad.unpack_dual(o).tangent for o in wide.function(*dual)]
        tangents = tuple(
            torch.zeros_like(s) if t is None else t.clone()
            for t, s in zip(results, wide.slope, strict=True)
        )
    compare_slopes(wide, tangents, wide.slope)


def compare_slopes(case: Case, got: Tensors, slope: Tensors) -> None:
    """Compares tangents with finite differences, for outputs that have gradients."""
    relative, absolute = FINE
    wanted = [True] * len(slope)
    if len(slope) == len(case.recorded) and any(case.recorded):
        wanted = list(case.recorded)
    for a, b, has in zip(got, slope, wanted, strict=True):
        if not has or a.dtype != b.dtype:
            continue
        if not bool(a.any()) and bool((b.abs() > absolute).any()):
            raise Finding(traps.SILENT_TANGENT, "the tangent is zero or None, without an error")
        try:
            torch.testing.assert_close(a, b, rtol=relative, atol=absolute, equal_nan=True)
        except AssertionError as error:
            raise Finding(traps.WRONG_TRANSFORM, str(error)) from error


def _without(case: Case) -> None:
    """no_grad and inference_mode: the same values, and no graph."""
    applies(not case.subject.random, "random")
    applies(not case.views, "gives a view")
    want = case.results()
    for mode in (torch.no_grad, torch.inference_mode):
        leaves = case.leaves()
        with quiet(), mode():
            got = case.function(*leaves)
        if any(o.requires_grad for o in got):
            raise Finding(traps.INFERENCE, f"records a graph under {mode.__name__}")
        with torch.inference_mode():
            same(got, want, traps.INFERENCE)


def last_lines(error: BaseException) -> str:
    """The end of a long message, where gradcheck puts the numbers."""
    return str(error).strip()[-600:]


COLUMNS = (
    Column("gradient", THEME, "first derivatives (gradcheck)", _gradient),
    Column("forward mode", THEME, "dual tensors", _forward),
    Column("no grad", THEME, "no_grad and inference_mode", _without, most=1, trap=traps.INFERENCE),
)
