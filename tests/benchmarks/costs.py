"""What the compiler's cost rules go by, from the tables in docs/benchmarks.md.

PYTHONPATH=tests python -m benchmarks.costs
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
PAGE = _ROOT / "docs" / "benchmarks.md"
FILE = _ROOT / "python" / "fusewheel" / "compiler" / "cost" / "measured.py"

_HEAD = '''\
"""Written by ``python -m benchmarks.costs``, from the tables in docs/benchmarks.md.

They are of one machine; what counts on another one are relations between these numbers.
"""

# Bytes that a copy reads and writes and operations of a float32 product, in a second; seconds that
# the smallest operator takes.
'''
_RATIOS = """
# Operator with its flags, dtype, whether there is a backward pass: numbers of elements (of the
# largest tensor), ascending, and how many times as fast as PyTorch's operations and as Inductor the
# operator is.
"""

# Of all other variants the best counts.
_FLAGS = ("tanh",)

Row = dict[str, str]
Key = tuple[str, str, bool]


def derive(page: str) -> str:
    """The source of the module `FILE`, by the text of the page."""
    machine = {"COPIED": _copied(page), "MULTIPLIED": _multiplied(page), "CALLED": _called(page)}
    lines = [f"{name} = {value:.2g}".replace("e+", "e") for name, value in machine.items()]
    table = ["RATIOS: dict[tuple[str, str, bool], tuple[tuple[float, ...], ...]] = {"]
    for key, points in sorted(_ratios(page).items()):
        name, dtype, backward = key
        texts = [f"({n}, {e:g}, {i:g})," for n, (e, i) in sorted(points.items())]
        begin = f'    ("{name}", "{dtype}", {backward}): ('
        if len(texts) == 1:
            table.append(f"{begin}{texts[0]}),")
        else:
            table += [begin, *(f"        {text}" for text in texts), "    ),"]
    return _HEAD + "\n".join(lines) + "\n" + _RATIOS + "\n".join([*table, "}"]) + "\n"


def _ratios(page: str) -> dict[Key, dict[int, tuple[float, float]]]:
    """The best of all numbers of threads: what is refused loses with each."""
    found: dict[Key, dict[int, tuple[float, float]]] = defaultdict(dict)
    inside = [(row, _inside(row)) for row in _rows(page, "rewrites")]
    known = {(_key(row), _elements(row["case"])) for row, _ in inside}
    # What a call costs shows within a graph alone, where there are figures for that.
    alone = [
        (row, (float(row["x eager"]), float(row["x Induct."]))) for row in _rows(page, "operators")
    ]
    alone = [(row, pair) for row, pair in alone if (_key(row), _elements(row["case"])) not in known]
    for row, (eager, inductor) in (*inside, *alone):
        points, n = found[_key(row)], _elements(row["case"])
        before = points.get(n, (0.0, 0.0))
        points[n] = max(before[0], eager), max(before[1], inductor)
    return found


def _inside(row: Row) -> tuple[float, float]:
    eager = float(row["PyTorch"]) / float(row["fused"])
    return round(eager, 2), round(float(row["Inductor"]) / float(row["fused, Ind."]), 2)


def _key(row: Row) -> Key:
    """The operator has the flags behind it that its case names, as in the schema."""
    flags = [word for word in row["case"].split()[1:] if word in _FLAGS]
    return " ".join([row["operator"], *flags]), row["dtype"], row["pass"] == "fwd+bwd"


def _elements(case: str) -> int:
    """Of the largest tensor: that of ``1x9+3x64 partial`` is 1x9x64."""
    sizes = case.split()[0].split("x")
    return math.prod(max(map(int, size.split("+"))) for size in sizes)


def _copied(page: str) -> float:
    """By an operator that reads and writes as much as a copy, too much for the caches."""
    case = {"operator": "gelu", "case": "4096x4096 erf", "dtype": "float32", "pass": "fwd"}
    row = next(row for row in _rows(page, "operators") if case.items() <= row.items())
    seconds = float(row["ms"]) * 1e-3 * float(row["of roof"].rstrip("%")) / 100
    return 2 * 4 * _elements(row["case"]) / seconds


def _multiplied(page: str) -> float:
    return 1e9 * max(
        float(row["GFLOP/s"])
        for row in _rows(page, "linear avx2")
        if row["layer"] == "F.linear fp32" and row["x"] == "float32"
    )


def _called(page: str) -> float:
    rows = [row for row in _rows(page, "calls") if row["pass"] == "no gradient"]
    return 1e-6 * min(float(row["torch.add us"]) for row in rows)


def _rows(page: str, name: str) -> Iterator[Row]:
    """The table of a section; nothing if there is no such section."""
    section = page.partition(f"<!-- bench {name} -->\n")[2]
    section = section.partition(f"<!-- end of bench {name} -->\n")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    if cells:
        titles, _, *rest = cells
        yield from (dict(zip(titles, row, strict=True)) for row in rest)


if __name__ == "__main__":
    FILE.write_text(derive(PAGE.read_text()))
