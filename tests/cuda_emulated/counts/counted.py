"""Counts a case once for all who ask."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from cuda_emulated.counts.cases import Case
from cuda_emulated.counts.figures import Figures, figures
from cuda_emulated.counts.kernels import at
from cuda_emulated.counts.launches import Launch, launches
from cuda_emulated.counts.predicted import Moved


@dataclass(frozen=True)
class Counted:
    """What a case launched, and its figures."""

    case: Case
    launches: tuple[Launch, ...]
    figures: Figures

    @property
    def moved(self) -> Moved:
        """What the case moves at its full shape."""
        bytes_ = round(self.case.minimum(self.case.full) * self.figures.bytes)
        tensor = any(launch.products > 0 for launch in self.launches)
        return Moved(self.case, bytes_, len(self.launches), tensor)


@cache
def counted(case: Case) -> Counted:
    """Calls the case's operator on the emulated kernels. Its random numbers are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        arguments = case.make(case.counted)
    every = launches(lambda: case.declared.overload(*arguments), case.cache)
    found = tuple(launch for launch in every if at(launch.kernel).startswith(case.kernel))
    return Counted(case, found, figures(found, case.minimum(case.counted)))
