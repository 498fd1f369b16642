"""Tensors that are not contiguous: gaps, permutations, repeated and overlapping elements."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fusewheel.doctor import traps
from fusewheel.doctor.case import REFUSALS, Case
from fusewheel.doctor.column import Column, Finding, Refused, applies

THEME = "layouts"


def gaps(tensor: Tensor) -> Tensor:
    """The same values, with another value between any two of them."""
    base = torch.ones([2 * s + 1 for s in tensor.shape], dtype=tensor.dtype, device=tensor.device)
    # Reading these values shows: NaN spreads; integer tensors, which have no NaN, keep ones.
    if tensor.is_floating_point():
        base.fill_(torch.nan)
    view = base[tuple(slice(1, None, 2) for _ in tensor.shape)]
    return view.copy_(tensor)


def permuted(tensor: Tensor) -> Tensor:
    """The same values, with the first dimension innermost in memory."""
    order = [*range(1, tensor.dim()), 0]
    back = sorted(range(tensor.dim()), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


def expanded(tensor: Tensor) -> Tensor:
    """The first row, repeated in place of the others."""
    return tensor[:1].expand(tensor.shape)


def overlapping(tensor: Tensor) -> Tensor:
    """Rows that overlap: each begins one element after the previous one."""
    strides = (1, *torch.empty(tensor.shape[1:], device="meta").stride())
    return tensor.flatten().clone().as_strided(tensor.shape, strides)


def _layout(change: Callable[[Tensor], Tensor], least: int) -> Callable[[Case], None]:
    def check(case: Case) -> None:
        fit = [i for i in case.floating if i not in case.written and case.tensors[i].numel()]
        fit = [i for i in fit if case.tensors[i].dim() >= least]
        applies(bool(fit), f"no floating tensor of {least} dimensions that is only read")
        applies(not case.subject.random, "random")
        tensors = list(case.tensors)
        for i in fit:
            tensors[i] = change(tensors[i])
        strange = case.using(tensors)
        plain = case.using(
            [t if i in case.written else t.contiguous() for i, t in enumerate(tensors)]
        )
        try:
            want = plain.results()
        except REFUSALS as error:
            raise Refused(str(error).split("\n")[0]) from error
        try:
            got = strange.results()
        except REFUSALS as error:
            raise Refused(str(error).split("\n")[0]) from error
        for a, b in zip(got, want, strict=True):
            try:
                torch.testing.assert_close(a, b, equal_nan=True)
            except AssertionError as error:
                raise Finding(traps.STRIDES, str(error)) from error

    return check


def _written(case: Case) -> None:
    """A written tensor may have gaps, which must not change; repeated elements are refused."""
    applies(bool(case.written), "writes nothing")
    want = case.results()
    index = case.written[0]
    tensors = [t.clone() for t in case.tensors]
    view = gaps(tensors[index])
    base = view._base
    assert base is not None
    tensors[index] = view
    try:
        case.subject.call(*case.given(tensors))
    except REFUSALS as error:
        raise Refused(str(error).split("\n")[0]) from error
    try:
        torch.testing.assert_close(view.clone(), want[-len(case.written)], equal_nan=True)
    except AssertionError as error:
        raise Finding(traps.STRIDES, str(error)) from error
    view.copy_(torch.zeros_like(view))
    if int((base == 0).sum()) != view.numel():
        raise Finding(traps.STRIDES, "wrote between the elements of its output")
    wide = tensors[index]
    if wide.dim() and wide.shape[0] > 1 and wide.numel():
        tensors[index] = wide[:1].clone().expand(wide.shape)
        try:
            case.subject.call(*case.given(tensors))
        except REFUSALS:
            return
        raise Finding(traps.STRIDES, "wrote several values into one expanded element")


COLUMNS = (
    Column("gaps", THEME, "strided views with gaps", _layout(gaps, 1)),
    Column("permuted", THEME, "transposed memory", _layout(permuted, 2)),
    Column("expanded", THEME, "elements repeated by stride 0", _layout(expanded, 1)),
    Column("overlapping", THEME, "inputs whose rows overlap", _layout(overlapping, 2)),
    Column("written", THEME, "a strided output; an expanded one is refused", _written),
)
