"""Tests the same wheel files on every Python and every torch this machine can get.

    python wheels/matrix.py --wheels FILE... [--python 3.11 ...] [--torch 2.13 ...] [--page PAGE]

A cell is an environment of its own: torch as pip finds it, the wheels by file, then the tests. What
cannot be had (no such interpreter, no such torch for it) is listed as not run, with the reason. The
table goes into PAGE, between two comments; cells that were not asked for keep what stands there.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.13t", "3.14")
TORCHES = ("2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
TOOLS = ("pytest", "expecttest", "hypothesis", "numpy", "safetensors")
TESTS = ("tests/wheels", "tests/ops/test_rms_norm.py", "tests/ops/test_muladd.py")
NOT_ASKED = "not asked for"
BEGIN, END = "<!-- nox -s matrix -->", "<!-- end -->"


@dataclass(frozen=True)
class Cell:
    """What became of one Python with one torch."""

    python: str
    torch: str
    outcome: str  # "passed", "failed" or "not run"
    detail: str


def interpreters() -> dict[str, str]:
    """The Pythons of this machine: on the path, and among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found: dict[str, str] = {}
    for version in PYTHONS:
        names = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"{version}.*/bin/python"))]
        for path in filter(None, names):
            # A name on the path may be pyenv's, which refuses to run what is not chosen.
            text = "import sys; print('{}.{}'.format(*sys.version_info))"
            done = subprocess.run((path, "-c", text), check=False, capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip() == version.rstrip("t"):
                found.setdefault(version, path)
    return found


def files_for(python: str, wheels: Sequence[Path]) -> list[Path]:
    """The wheels that pip would take: free-threaded Python has no abi3."""
    unfit = "-abi3-" if python.endswith("t") else "-py3-none-manylinux"
    return [wheel for wheel in wheels if unfit not in wheel.name]


def run_cell(python: str, torch: str, executable: str, wheels: Sequence[Path]) -> Cell:
    """Makes the environment of one cell and runs the tests in it."""
    folder = ROOT / ".nox" / "matrix" / f"{python}-{torch}"
    shutil.rmtree(folder, ignore_errors=True)
    own = str(folder / "bin" / "python")
    pip = (own, "-m", "pip", "install", "--quiet")
    steps = (
        (sys.executable, "-m", "virtualenv", "--quiet", "--python", executable, str(folder)),
        (*pip, f"torch=={torch}.*"),
        (*pip, *TOOLS),
        (*pip, "--no-deps", *map(str, files_for(python, wheels))),
    )
    for step in steps:
        done = subprocess.run(step, check=False, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
            return Cell(python, torch, "not run", reason)
    text = "import torch; print(torch.__version__)"
    version = subprocess.run((own, "-c", text), check=False, capture_output=True, text=True)
    tests = (own, "-m", "pytest", "-q", *TESTS)
    environment = {**os.environ, "FUSEWHEEL_DIST": str(wheels[0].resolve().parent)}
    done = subprocess.run(
        tests, check=False, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    print(done.stdout[-3000:], done.stderr[-1000:], flush=True)
    summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
    counts = ", ".join(re.findall(r"\d+ (?:passed|failed|errors?|skipped)", summary)) or summary
    outcome = "failed" if done.returncode else "passed"
    return Cell(python, torch, outcome, f"{version.stdout.strip()}: {counts}")


def page(cells: Sequence[Cell], wheels: Sequence[Path]) -> str:
    """The table, the reasons, the hashes, and the cells once more for the next run to read."""
    pythons = sorted({cell.python for cell in cells}, key=_order)
    torches = sorted({cell.torch for cell in cells}, key=_order)
    by_key = {(cell.python, cell.torch): cell for cell in cells}
    lines = [
        "| Python | " + " | ".join(f"torch {torch}" for torch in torches) + " |",
        "|---|" + "---|" * len(torches),
    ]
    for python in pythons:
        row = (by_key.get((python, torch)) for torch in torches)
        lines.append(f"| {python} | " + " | ".join(c.outcome if c else "" for c in row) + " |")
    lines += ["", "Not run is not passed. What was seen, and why the rest was not run:", ""]
    details: dict[str, list[str]] = {}
    for cell in cells:
        text = f"{cell.outcome}: {cell.detail}"
        details.setdefault(text, []).append(f"{cell.python} with {cell.torch}")
    lines += [f"* {text} ({', '.join(keys)})" for text, keys in sorted(details.items())]
    lines += ["", "The files, by SHA-256:", ""]
    for wheel in wheels:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"* `{wheel.name}` {digest}")
    return "\n".join([*lines, "", f"<!-- {json.dumps([asdict(cell) for cell in cells])} -->"])


def _order(version: str) -> tuple[int, int, bool]:
    major, minor = version.rstrip("t").split(".")
    return int(major), int(minor), version.endswith("t")


def merge(text: str, cells: Sequence[Cell], wheels: Sequence[Path]) -> str:
    """The page with a new table; earlier cells stay if they were of the same files."""
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    known: dict[tuple[str, str], Cell] = {}
    hashes = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
    data = re.search(r"<!-- (\[.*\]) -->", old)
    if data and all(digest in old for digest in hashes):
        known = {(c["python"], c["torch"]): Cell(**c) for c in json.loads(data[1])}
    for cell in cells:
        if cell.detail == NOT_ASKED:
            known.setdefault((cell.python, cell.torch), cell)
        else:
            known[cell.python, cell.torch] = cell
    ordered = sorted(known.values(), key=lambda cell: (_order(cell.python), _order(cell.torch)))
    return f"{before}{BEGIN}\n{page(ordered, wheels)}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Runs the cells that were asked for; returns 1 if one failed, or none was run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", nargs="+", type=Path, required=True, help="the wheel files")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="versions; default: all")
    parser.add_argument("--torch", nargs="+", default=TORCHES, help="versions; default: all")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes")
    options = parser.parse_args(arguments)
    found = interpreters()
    cells: list[Cell] = []
    for python in PYTHONS:
        for torch in TORCHES:
            if python not in options.python or torch not in options.torch:
                cell = Cell(python, torch, "not run", NOT_ASKED)
            elif python not in found:
                cell = Cell(python, torch, "not run", f"no Python {python} on this machine")
            else:
                cell = run_cell(python, torch, found[python], options.wheels)
                print(f"Python {python}, torch {torch}: {cell.outcome}, {cell.detail}", flush=True)
            cells.append(cell)
    options.page.write_text(merge(options.page.read_text(), cells, options.wheels))
    outcomes = {cell.outcome for cell in cells}
    return int("failed" in outcomes or "passed" not in outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
