"""The figures of an operator's launches that have gates, and the gates.

A figure outside its gate either makes a test fail or stands in `missed.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cuda_emulated.counts.launches import VECTOR, WARP, Launch


class Figures(NamedTuple):
    """What an operator's launches have in common.

    Attributes:
        bytes: moved, as a multiple of the least that the operator can move.
        sectors: of global memory touched by the instructions, as a multiple of those that would
            hold the bytes that they ask for.
        conflicts: passes through shared memory, as a multiple of those without bank conflicts.
        lanes: the share of the lanes that take part in an access to global memory; each access
            counts as often as it touches sectors.
        wide: the share of the bytes of global memory that are asked for 16 bytes a lane.
        again: how often the instructions ask for a sector, on average; a cache answers all but the
            first. It has no gate.
    """

    bytes: float
    sectors: float
    conflicts: float
    lanes: float
    wide: float
    again: float


MOST = {"bytes": 1.05, "sectors": 1.1, "conflicts": 1.0}
"""Gates of what should be small."""
LEAST = {"lanes": 0.9, "wide": 0.9}
"""Gates of what should be large."""
DIGITS = 2


def figures(launches: Sequence[Launch], minimum: int) -> Figures:
    """The figures of launches for which `minimum` bytes would do."""
    everything = [i for launch in launches for i in launch.instructions]
    to_global = [i for i in everything if not i.shared]
    moved = sum(launch.moved for launch in launches)
    sectors = sum(i.sectors for i in to_global)
    passes = sum(i.passes for i in everything)
    busy = sum(i.sectors * i.lanes / (i.executions * WARP) for i in to_global)
    wide = sum(i.bytes for i in to_global if i.width == VECTOR)
    found = Figures(
        bytes=moved / minimum,
        sectors=sectors / sum(i.needed for i in to_global),
        conflicts=passes / max(sum(i.least_passes for i in everything), 1) if passes else 1.0,
        lanes=busy / sectors,
        wide=wide / sum(i.bytes for i in to_global),
        again=sectors * 32 / moved,
    )
    return Figures(*(round(figure, DIGITS) for figure in found))


def missed(found: Figures) -> dict[str, float]:
    """Those outside of their gates."""
    values = found._asdict()
    return {
        name: value
        for name, value in values.items()
        if value > MOST.get(name, value) or value < LEAST.get(name, value)
    }


def is_worse(name: str, value: float, than: float) -> bool:
    """Whether a figure is further from its gate than another."""
    return value > than if name in MOST else value < than
