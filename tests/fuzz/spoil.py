"""Calls that are wrong, most of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fusewheel.dispatch.operator import Operator
from hypothesis import strategies as st
from neighbours import Arguments
from torch import Tensor

from fuzz.draw import Draw, Strategy

WRONG_NUMBERS = (0, -1, 3, 2**31, 2**40, -(2**63), -0.5, 1.5, math.inf, math.nan, "three", None)
WRONG_DTYPES = (
    *(torch.int32, torch.int64, torch.uint8, torch.int8, torch.bool, torch.complex64),
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
)


def spoiled(operator: Operator, strategy: Strategy) -> st.SearchStrategy[Arguments]:
    """Arguments of which one is changed into something that was not meant."""

    @st.composite
    def arguments(draw: st.DrawFn) -> Arguments:
        source = Draw(draw)
        given = list(strategy(source))
        index = source.integer(0, len(given) - 1)
        change = source.choice(*(_TENSORS if isinstance(given[index], Tensor) else (_other,)))
        given[index] = change(source, given[index])
        return tuple(given)

    return arguments()


def _other(source: Draw, old: Any) -> Any:
    return source.choice(*WRONG_NUMBERS, torch.zeros(3))


def _dtype(source: Draw, old: Tensor) -> Tensor:
    return old.nan_to_num(0.0).to(source.choice(*WRONG_DTYPES))


def _fewer(source: Draw, old: Tensor) -> Tensor:
    return old.sum(0) if old.dim() else old


def _more(source: Draw, old: Tensor) -> Tensor:
    return old.unsqueeze(source.integer(0, old.dim()))


def _longer(source: Draw, old: Tensor) -> Tensor:
    if not old.dim():
        return old.expand(2)
    dim = source.integer(0, old.dim() - 1)
    return torch.cat((old, old.narrow(dim, 0, min(1, old.shape[dim]))), dim)


def _shorter(source: Draw, old: Tensor) -> Tensor:
    if not old.dim():
        return old.expand(0)
    dim = source.integer(0, old.dim() - 1)
    return old.narrow(dim, 0, max(0, old.shape[dim] - 1))


def _turned(source: Draw, old: Tensor) -> Tensor:
    return old.T if old.dim() == 2 else old.flatten()


def _elements(source: Draw, old: Tensor) -> Tensor:
    """Numbers that are no classes and no rows, for example."""
    changed = old.contiguous().clone()
    if changed.numel():
        wild = source.choice(-1, 2**20, 2**40, -(2**63)) if old.dtype == torch.int64 else 0
        changed.view(-1)[source.integer(0, old.numel() - 1)] = wild
    return changed


def _repeated(source: Draw, old: Tensor) -> Tensor:
    return old[:1].expand(old.shape) if old.dim() else old


def _none(source: Draw, old: Tensor) -> None:
    return None


def _sparse(source: Draw, old: Tensor) -> Tensor:
    return old.to_sparse()


def _elsewhere(source: Draw, old: Tensor) -> Tensor:
    return old.to("meta")


_TENSORS: Sequence[Callable[[Draw, Tensor], Any]] = (
    *(_dtype, _fewer, _more, _longer, _shorter, _turned, _elements, _repeated),
    *(_none, _sparse, _elsewhere, _other),
)
