"""Counts a case once for all who ask."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from cuda_emulated.counts.cases import Case
from cuda_emulated.counts.figures import Figures, figures
from cuda_emulated.counts.launches import Launch, launches


@dataclass(frozen=True)
class Counted:
    """What a case launched, and its figures."""

    case: Case
    launches: tuple[Launch, ...]
    figures: Figures

    def moved(self, rows: int) -> int:
        """Bytes that the case moves with another number of rows."""
        return round(self.case.minimum(rows) * self.figures.bytes)


@cache
def counted(case: Case) -> Counted:
    """Calls the case's operator on the emulated kernels. Its random numbers are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        arguments = case.make(case.counted)
    found = tuple(launches(lambda: case.declared.overload(*arguments)))
    return Counted(case, found, figures(found, case.minimum(case.counted)))
