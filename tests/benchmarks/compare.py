"""A run against an earlier one."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results import Cell, Run

# By so much a cell may be slower before it counts.
TOLERANCE = 1.05

# What makes two runs incomparable; the threads are part of each cell.
_SAME = ("cpu", "cores", "capability", "isa", "kernels", "torch")


@dataclass(frozen=True)
class Comparison:
    """What became of the cells of the earlier run.

    Attributes:
        slower: pairs of base and now, the worst first.
        compared: how many cells both runs have.
        notes: why the comparison may mean less than it seems to.
    """

    slower: list[tuple[Cell, Cell]]
    compared: int
    notes: list[str]

    @property
    def failed(self) -> bool:
        """Whether a cell is slower, or nothing was compared."""
        return bool(self.slower) or not self.compared

    def text(self) -> str:
        """All of it, one line per cell."""
        lines = [f"note: {note}" for note in self.notes]
        lines += [_line(base, now) for base, now in self.slower]
        lines.append(
            f"{len(self.slower)} of {self.compared} cells are slower than the base by more than "
            f"{TOLERANCE - 1:.0%}"
            if self.compared
            else "FAILED: the base has none of these cells"
        )
        return "\n".join(lines)


def compare(run: Run, base: Run) -> Comparison:
    """Our cells that both have; PyTorch's own are not ours to answer for."""
    bases = {cell.key: cell for cell in base.cells}
    pairs = [
        (bases[cell.key], cell) for cell in run.cells if cell.key in bases and not cell.is_baseline
    ]
    slower = [(old, new) for old, new in pairs if new.seconds > TOLERANCE * old.seconds]
    notes = [
        f"the base ran with {name} {base.machine.get(name)}, this with {run.machine.get(name)}"
        for name in _SAME
        if base.machine.get(name) != run.machine.get(name)
    ]
    measured = sum(not cell.is_baseline for cell in run.cells)
    if len(pairs) < measured:
        notes.append(f"{measured - len(pairs)} cells are not in the base")
    slower.sort(key=lambda pair: pair[0].seconds / pair[1].seconds)
    return Comparison(slower, len(pairs), notes)


def _line(base: Cell, now: Cell) -> str:
    # The change of the baselines tells a slower operator from a slower machine.
    others = ", ".join(
        f"{name} {_change(base.baselines[name], seconds)}"
        for name, seconds in now.baselines.items()
        if name in base.baselines
    )
    return (
        f"{now.name} {now.case} {now.dtype} {now.threads} {now.direction}: "
        f"{base.seconds * 1e3:.3f} -> {now.seconds * 1e3:.3f} ms, "
        f"{_change(base.seconds, now.seconds)} ({others})"
    )


def _change(base: float, now: float) -> str:
    return f"{now / base - 1:+.0%}"
