"""Tests the same wheel files on every Python and every torch this machine can get.

    python wheels/matrix.py --wheels FILE... [--python 3.11 ...] [--torch 2.13 ...] [--page PAGE]
        [--at-hand] [--again]

A cell is an environment of its own: torch as uv finds it, the wheels by file, then the tests. What
cannot be had (no such interpreter, no such torch for it) is listed as not run, with the reason. The
table goes into PAGE, between two comments, after every cell. Cells not asked for keep what
stands there; so do those that passed with the same files, without --again.
With --at-hand nothing is downloaded: a cell runs if its Python is installed and its torch in uv's
cache (UV_CACHE_DIR) or in a folder it knows (UV_FIND_LINKS), and it is no failure if none does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pythons

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.13t", "3.14")
TORCHES = ("2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
TOOLS = ("pytest", "expecttest", "hypothesis", "numpy", "pip", "click", "psutil", "tqdm")
PLACE = ROOT / ".nox" / "cells"
# Tests with the marker `matrix`: what a user meets first, of two operators all ways of using them,
# and of the compiler, export, TorchScript, quantised weights and several devices one test of each
# way. Other tests of the wheels put stand-ins in place of torch, or look at the files. Modules that
# import what a cell does not have are left out.
FOLDERS = (
    *("tests/wheels", "tests/ops", "tests/jit", "tests/torch_names", "tests/distributed"),
    *(f"tests/compiler/test_{name}.py" for name in ("autograd", "backend", "entry")),
    *(f"tests/export/test_{name}.py" for name in ("inductor", "programs")),
    *(f"tests/quantization/test_{name}.py" for name in ("model", "modules")),
)
TESTS = (*FOLDERS, "--ignore=tests/ops/test_compilers.py", "-m", "matrix")
NOT_ASKED = "not asked for"
BEGIN, END = "<!-- nox -s matrix -->", "<!-- end -->"


@dataclass(frozen=True)
class Cell:
    """What became of one Python with one torch."""

    python: str
    torch: str
    outcome: str  # "passed", "failed" or "not run"
    detail: str


def files_for(python: str, wheels: Sequence[Path]) -> list[Path]:
    """The wheels that pip would take: free-threaded Python has no abi3."""
    unfit = "-abi3-" if python.endswith("t") else "-py3-none-manylinux"
    return [wheel for wheel in wheels if unfit not in wheel.name]


def run_cell(
    python: str, torch: str, executable: str, wheels: Sequence[Path], at_hand: bool
) -> Cell:
    """Makes the environment of one cell and runs the tests in it."""
    folder = PLACE / f"{python}-{torch}"
    shutil.rmtree(folder, ignore_errors=True)
    own = str(folder / "bin" / "python")
    uv = str(Path(sys.executable).with_name("uv"))
    # An sdist would want a compiler, which is no reason to leave a cell out.
    offline = ["--offline"] * at_hand
    install = (uv, "pip", "install", "--quiet", "--no-build", "--python", own, *offline)
    done = _run((uv, "venv", "--quiet", "--python", executable, str(folder)))
    done = done if done.returncode else _run((*install, f"torch=={torch}.*", *TOOLS))
    if done.returncode:
        return Cell(python, torch, "not run", _reason(done.stderr))
    version = _run((own, "-c", "import torch; print(torch.__version__)"))
    done = _run((*install, "--no-deps", *map(str, files_for(python, wheels))))
    if done.returncode:
        return Cell(python, torch, "failed", f"installing: {_reason(done.stderr)}")
    tests = (own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    # Triton, which comes with torch, would turn the lock on when it is imported.
    lock = {"PYTHON_GIL": "0"} if python.endswith("t") else {}
    done = _run(tests, FUSEWHEEL_DIST=str(wheels[0].resolve().parent), **lock)
    print(done.stdout[-6000:], done.stderr[-1000:], flush=True)
    if "UV_CACHE_DIR" not in os.environ:
        _run((uv, "cache", "clean", "--quiet", "torch", "triton"))  # no other cell wants these
    summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
    counts = ", ".join(re.findall(r"\d+ (?:passed|failed|errors?|skipped)", summary)) or summary
    outcome = "failed" if done.returncode else "passed"
    return Cell(python, torch, outcome, f"{version.stdout.strip()}: {counts}")


def _run(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    # uv links what it has unpacked once; the CUDA libraries of a torch are gigabytes.
    settings = {"UV_CACHE_DIR": str(PLACE / "cache"), **os.environ, **environment}
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=settings
    )


def _reason(complaint: str) -> str:
    """A sentence of an installer's complaint, without the frames and the addresses in it."""
    text = " ".join(re.sub(r"https?://\S+|[^\x00-\x7f]", "", complaint).split())
    for more in (" hint:", " and only the following versions"):
        text = text.partition(more)[0]
    return text.rpartition(" cause: ")[2][-300:] or "no reason was given"


def table(cells: Sequence[Cell], wheels: Sequence[Path]) -> str:
    """The table, the reasons, the hashes, and the cells once more for the next run to read."""
    versions = sorted({cell.python for cell in cells}, key=_order)
    torches = sorted({cell.torch for cell in cells}, key=_order)
    by_key = {(cell.python, cell.torch): cell for cell in cells}
    lines = [
        "| Python | " + " | ".join(f"torch {torch}" for torch in torches) + " |",
        "|---|" + "---|" * len(torches),
    ]
    for python in versions:
        row = (by_key.get((python, torch)) for torch in torches)
        lines.append(f"| {python} | " + " | ".join(c.outcome if c else "" for c in row) + " |")
    lines += ["", "Not run is not passed. What was seen, and why the rest was not run:", ""]
    details: dict[str, list[str]] = {}
    for cell in cells:
        text = f"{cell.outcome}: {cell.detail}"
        details.setdefault(text, []).append(f"{cell.python} with {cell.torch}")
    rest = len(details.pop(f"not run: {NOT_ASKED}", ()))
    lines += [f"* {text} ({', '.join(keys)})" for text, keys in sorted(details.items())]
    if rest:
        lines.append(f"* not run: {NOT_ASKED} (the other {rest})")
    lines += ["", "The files, by SHA-256:", ""]
    for wheel in wheels:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"* `{wheel.name}` {digest}")
    return "\n".join([*lines, "", f"<!-- {json.dumps([asdict(cell) for cell in cells])} -->"])


def _order(version: str) -> tuple[int, int, bool]:
    major, minor = version.rstrip("t").split(".")
    return int(major), int(minor), version.endswith("t")


def recorded(text: str, wheels: Sequence[Path]) -> dict[tuple[str, str], Cell]:
    """The cells of a page, if they were of the same files."""
    old = text.partition(BEGIN)[2].partition(END)[0]
    data = re.search(r"<!-- (\[.*\]) -->", old)
    hashes = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
    if data is None or not all(digest in old for digest in hashes):
        return {}
    return {(c["python"], c["torch"]): Cell(**c) for c in json.loads(data[1])}


def _text(page: Path) -> str:
    return page.read_text() if page.exists() else f"{BEGIN}\n{END}\n"


def merge(text: str, cells: Sequence[Cell], wheels: Sequence[Path]) -> str:
    """The page with a new table; earlier cells stay if they were of the same files."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    known = recorded(text, wheels)
    for cell in cells:
        if cell.detail == NOT_ASKED:
            known.setdefault((cell.python, cell.torch), cell)
        else:
            known[cell.python, cell.torch] = cell
    ordered = sorted(known.values(), key=lambda cell: (_order(cell.python), _order(cell.torch)))
    return f"{before}{BEGIN}\n{table(ordered, wheels)}\n{END}{after}"


def diagonals() -> Iterator[tuple[str, str]]:
    """All cells, in an order in which the first six have seen every Python and every torch."""
    for shift in range(len(TORCHES)):
        for row, python in enumerate(PYTHONS):
            yield python, TORCHES[(row + shift) % len(TORCHES)]


def tried(python: str, torch: str, wheels: Sequence[Path], at_hand: bool) -> Cell:
    """One cell, and nothing left of it."""
    try:
        executable = pythons.interpreter(python, PLACE / "pythons", at_hand)
        return run_cell(python, torch, executable, wheels, at_hand)
    except pythons.NotToBeHad as error:
        return Cell(python, torch, "not run", str(error))
    finally:
        shutil.rmtree(PLACE / f"{python}-{torch}", ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """Runs the cells that were asked for; returns 1 if one failed, or none of them could be run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", nargs="+", type=Path, required=True, help="the wheel files")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="versions; default: all")
    parser.add_argument("--torch", nargs="+", default=TORCHES, help="versions; default: all")
    parser.add_argument("--at-hand", action="store_true", help="download nothing to test on")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes")
    parser.add_argument("--again", action="store_true", help="also what passed before")
    options = parser.parse_args(arguments)
    page, cells = options.page, []
    for python, torch in diagonals():
        cell = recorded(_text(page), options.wheels).get((python, torch))
        if python not in options.python or torch not in options.torch:
            cell = Cell(python, torch, "not run", NOT_ASKED)
        elif cell is None or cell.outcome != "passed" or options.again:
            cell = tried(python, torch, options.wheels, options.at_hand)
            print(f"Python {python}, torch {torch}: {cell.outcome}, {cell.detail}", flush=True)
            # After each of them, because all of them take hours.
            page.write_text(merge(_text(page), [cell], options.wheels))
        cells.append(cell)
    page.write_text(merge(_text(page), cells, options.wheels))
    outcomes = {cell.outcome for cell in cells}
    return int("failed" in outcomes or ("passed" not in outcomes and not options.at_hand))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
