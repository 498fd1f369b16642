"""Speed against PyTorch: competitors take turns in one process, figures are medians.

nox -s bench -- --operators rms_norm silu_mul --dtypes float32 bfloat16 --threads 1 2
nox -s bench -- --table linear --isa avx2
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from benchmarks import (
    attention,
    calls,
    compile_models,
    encoders,
    experts,
    formats,
    linear,
    machine,
    operators,
    origin,
    peers,
    projection,
    qlora,
    results,
    rewrites,
    timing,
    torchscript,
    unknown,
)
from benchmarks.compare import compare
from benchmarks.results import Run
from benchmarks.tables import Table, header, insert, line, markdown
from fusewheel.demo.isa import LEVELS

TABLES: dict[str, Table] = {
    "operators": operators.TABLE,
    "linear": linear.TABLE,
    "linear_cross_entropy": projection.TABLE,
    "attention": attention.TABLE,
    "calls": calls.TABLE,
    "rewrites": rewrites.TABLE,
    "compile": compile_models.TABLE,
    "encoders": encoders.TABLE,
    "experts": experts.TABLE,
    "formats": formats.TABLE,
    "qlora": qlora.TABLE,
    "torchscript": torchscript.TABLE,
    "unknown": unknown.TABLE,
    "peers": peers.TABLE,
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, among them those of the table asked for."""
    choice = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    choice.add_argument("--table", choices=list(TABLES), default="operators")
    table = choice.parse_known_args(arguments)[0].table
    parser = argparse.ArgumentParser(
        prog="nox -s bench --",
        description=__doc__.splitlines()[0],
        epilog=f"Options shown are those of --table {table}.",
        parents=[choice],
        allow_abbrev=False,
    )
    parser.add_argument("--threads", nargs="*", type=int, default=[torch.get_num_threads()])
    parser.add_argument("--seconds", type=float, default=0.5, help="per competitor and cell")
    parser.add_argument(
        "--isa", choices=list(LEVELS), help="instructions that all libraries are held to"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--chart", type=Path, help="draw the ratios into this PNG file")
    parser.add_argument("--markdown", type=Path, help="put the table into this page")
    parser.add_argument(
        "--part", help="what of the table this is; it has a section of its own in the page"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="BASE.json",
        help="fail where a cell is more than 5 %% slower than in this file",
    )
    TABLES[table].add_options(parser)
    return parser.parse_args(arguments)


def finish(run: Run, options: argparse.Namespace, base: Run | None) -> int:
    """Prints and writes what was asked for; the exit status."""
    table = TABLES[run.table]
    for text in table.summary(run.cells):
        print(text)
    if options.json:
        run.write(options.json)
    if options.chart:
        from benchmarks.chart import draw

        draw(
            table.panels(run.cells), f"{table.title}\n{machine.heading(run.machine)}", options.chart
        )
    if options.markdown:
        picture = options.chart and os.path.relpath(options.chart, options.markdown.parent)
        section = markdown(table, run, table.notes(options), picture)
        insert(options.markdown, run, section)
    if base is None:
        return 0
    comparison = compare(run, base)
    print(comparison.text())
    return int(comparison.failed)


def main() -> int:
    """Measures; the exit status."""
    options = parse()
    timing.require(timing.ALLOCATOR | machine.environment(options.isa))
    base = _checked(options)
    table = TABLES[options.table]
    described = machine.describe(options.threads, options.isa) | origin.describe(sys.argv[1:])
    if options.part:
        described |= {"part": options.part}
    print(machine.heading(described), table.notes(options), "", header(table), sep="\n", flush=True)
    cells = []
    for cell in table.cells(options):
        print(line(table, cell), flush=True)
        cells.append(cell)
    return finish(Run(options.table, described, cells), options, base)


def _checked(options: argparse.Namespace) -> Run | None:
    """The base, once what would fail after minutes of measuring is known to work."""
    for path in (options.json, options.chart, options.markdown):
        if path and not path.parent.is_dir():
            raise SystemExit(f"{path}: there is no folder {path.parent}")
    if options.against is None:
        return None
    try:
        return results.read(options.against)
    except (OSError, ValueError) as error:
        raise SystemExit(f"--against: {error}") from error
