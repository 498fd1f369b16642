"""torch.export: strict and not, saved and loaded, with dynamic sizes, decomposed."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, Tensors, quiet
from fusewheel.doctor.column import Column, Finding, applies
from fusewheel.doctor.columns.compilers import grown, leading, own
from fusewheel.doctor.columns.memory import same

THEME = "export"


class Module(torch.nn.Module):
    """The operator in a module."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.function = case.function

    def forward(self, *tensors: Tensor) -> Tensors:
        """Its results."""
        return self.function(*tensors)


def _exported(case: Case, **settings: Any) -> Any:
    applies(not case.subject.random, "random")
    try:
        with quiet():
            return torch.export.export(Module(case), own(case), **settings)
    except Exception as error:
        raise Finding(traps.diagnosed(error, traps.EXPORT), str(error).strip()[:600]) from error


def _run(program: Any, case: Case) -> Tensors:
    with quiet(), torch.no_grad():
        results: Tensors = program.module()(*own(case))
    return results


def _saved(case: Case) -> None:
    program = _exported(case, strict=False)
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(program, buffer)
        again = torch.export.load(io.BytesIO(buffer.getvalue()))
    same(_run(again, case), case.results(), traps.COMPILED_VALUES)


def _strict(case: Case) -> None:
    same(_run(_exported(case, strict=True), case), case.results(), traps.COMPILED_VALUES)


def _dynamic(case: Case) -> None:
    small, large = grown(case)
    size = leading(small)
    shapes = tuple(
        {d: torch.export.Dim.DYNAMIC for d, s in enumerate(t.shape) if s == size} or None
        for t in small.tensors
    )
    program = _exported(small, strict=False, dynamic_shapes=(shapes,))
    same(_run(program, large), large.results(), traps.COMPILED_VALUES)


def _decomposed(case: Case) -> None:
    program = _exported(case, strict=False)
    with quiet():
        again = program.run_decompositions()
    same(_run(again, case), case.results(), traps.COMPILED_VALUES)


COLUMNS = (
    Column("export", THEME, "exported, saved and loaded", _saved, most=1, trap=traps.EXPORT),
    Column("strict export", THEME, "strict mode", _strict, most=1, trap=traps.EXPORT),
    Column("dynamic export", THEME, "a dynamic dimension", _dynamic, most=1, trap=traps.EXPORT),
    Column("decomposed", THEME, "run_decompositions", _decomposed, most=1, trap=traps.EXPORT),
)
