"""What a run of the benchmark found, and its file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1

# What a cell may time, as `--directions` names it.
DIRECTIONS = ("fwd", "fwd+bwd")

Key = tuple[str, str, str, int, str]


@dataclass(frozen=True)
class Cell:
    """One case of one subject, in seconds per call.

    Attributes:
        name: the subject: an operator or a kind of linear layer.
        case: its sizes.
        dtype: of the activations.
        threads: PyTorch's.
        direction: "fwd" or "fwd+bwd".
        seconds: the median of the subject.
        baselines: those of what it is compared with, taken in turn with it.
        roof: what the memory it must move takes by itself.
        flops: multiplications and additions, where they are what counts.
        goals: what the project wants of this case, and whether it is met.
        peaks: bytes of memory the subject and its baselines take at most.
        compiling: seconds before the first result, beyond those of a call.
        note: why there are fewer figures than elsewhere.
        more: other figures that a table has, by their names.
    """

    name: str
    case: str
    dtype: str
    threads: int
    direction: str
    seconds: float
    baselines: dict[str, float]
    roof: float
    flops: int = 0
    goals: dict[str, bool] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    compiling: float = 0.0
    note: str = ""
    more: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What finds the same cell in another run."""
        return self.name, self.case, self.dtype, self.threads, self.direction

    @property
    def is_baseline(self) -> bool:
        """Whether this is PyTorch's own, shown beside its competitors."""
        return self.name in self.baselines

    def ratio(self, baseline: str) -> float:
        """How many times as fast as the baseline."""
        return self.baselines[baseline] / self.seconds

    @property
    def of_roof(self) -> float:
        """1 where nothing but memory traffic is left."""
        return self.roof / self.seconds


@dataclass(frozen=True)
class Run:
    """One table and what its figures depend on."""

    table: str
    machine: dict[str, Any]
    cells: list[Cell]

    def write(self, path: Path) -> None:
        """As JSON, for `read` and other programs."""
        path.write_text(json.dumps({"schema": SCHEMA_VERSION, **asdict(self)}, indent=1) + "\n")


def read(path: Path) -> Run:
    """The run that `--json` wrote there; ValueError if it is another file."""
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    version = found.get("schema") if isinstance(found, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(f"{path} must have schema {SCHEMA_VERSION}, got {version}")
    return Run(found["table"], found["machine"], [Cell(**cell) for cell in found["cells"]])


def mean_ratio(cells: Iterable[Cell], baseline: str) -> float:
    """Geometric mean."""
    return statistics.geometric_mean(cell.ratio(baseline) for cell in cells)
