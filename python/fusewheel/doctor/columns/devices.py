"""Columns that need a GPU."""

from __future__ import annotations

import torch

from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, quiet
from fusewheel.doctor.column import Column, NotApplicable, applies
from fusewheel.doctor.columns.memory import same
from fusewheel.doctor.columns.modes import autocast

THEME = "devices"
WARM_UP = 3


def _on_gpu(case: Case) -> Case:
    applies(torch.cuda.is_available(), "no CUDA device")
    moved = case.using([t.cuda() for t in case.tensors])
    try:
        moved.results()
    except NotImplementedError as error:
        raise NotApplicable("no kernel for CUDA") from error
    return moved


def _graph(case: Case) -> None:
    """Captures a CUDA graph and replays it with other values."""
    applies(not case.subject.random, "random")
    case = _on_gpu(case)
    tensors = [t.clone() for t in case.tensors]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad(), quiet():
        for _ in range(WARM_UP):
            case.function(*tensors)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad(), quiet():
        results = case.function(*tensors)
    for given in (case.other_values(), case):
        for tensor, value in zip(tensors, given.tensors, strict=True):
            tensor.copy_(value)
        graph.replay()
        same(results, given.results(), traps.GRAPHED)


def _autocast(case: Case) -> None:
    autocast(_on_gpu(case))


COLUMNS = (
    Column("CUDA graph", THEME, "captured and replayed", _graph, most=1, trap=traps.GRAPHED),
    Column("CUDA autocast", THEME, "autocast on a GPU", _autocast, most=1, trap=traps.AUTOCAST),
)
