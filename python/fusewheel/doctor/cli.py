"""Tests whether an operator of any package works in every part of PyTorch.

    fusewheel.doctor.check(torch.ops.my_package.my_op.default, [(torch.randn(3, 4),)])

or, from a shell, `python -m fusewheel doctor my_package::my_op --samples my_module:samples`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fusewheel._core.show import show
from fusewheel.doctor.conformance import page
from fusewheel.doctor.examination import check
from fusewheel.doctor.naming import named, operator_named
from fusewheel.doctor.outcome import Status
from fusewheel.doctor.report import MARKS

COLOURS = {
    r"(?<=  )works(?=  |$)": "green",
    r"(?<=  )refuses(?=  |$)": "yellow",
    r"(?<=  )fails(?=  |$)": "red",
}
"""Of the status of each column."""


def main(arguments: Sequence[str]) -> int:
    """Examines an operator; returns 1 if something fails, 2 if there is nothing to examine."""
    options = parser()
    given = options.parse_args(arguments)
    # A list takes every word up to the next option. Only an operator has a colon.
    for words in (given.columns, given.imports, given.fixed):
        if given.operator is None and words and ":" in words[-1]:
            given.operator = words.pop()
    if given.conformance is not None:
        before = given.conformance.read_text() if given.conformance.exists() else ""
        try:
            text = page(given.columns, before, given.operators)
        except ValueError as error:
            options.error(str(error))
        given.conformance.write_text(text)
        return 1 if MARKS[Status.FAILS] in text.split("##", 1)[1] else 0
    if given.operator is None or given.samples is None:
        options.error("an operator and --samples are needed (or --conformance)")
    # Modules in the current folder can be imported, as with `python -m pytest`.
    sys.path.insert(0, os.getcwd())
    try:
        samples = named(given.samples)
        modules = [given.samples.partition(":")[0], *given.imports]
        for name in modules:
            importlib.import_module(name)
        operator = operator_named(given.operator)
        report = check(
            operator,
            samples,
            columns=given.columns,
            slow=given.slow,
            seconds=given.timeout,
            modules=modules,
            fixed=given.fixed,
        )
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        options.error(str(error))
    show(report, as_json=False, colours=COLOURS)
    for path, text in ((given.json, report.to_json()), (given.markdown, report.markdown())):
        if path is not None:
            path.write_text(text)
    return 0 if report.healthy else 1


def parser() -> argparse.ArgumentParser:
    """The options of `fusewheel doctor`."""
    found = argparse.ArgumentParser(prog="fusewheel doctor", description=__doc__)
    add = found.add_argument
    add("operator", nargs="?", help="ns::name, ns::name.overload, or module:function")
    add("--samples", help="module:function that gives argument tuples; it imports the operator")
    add("--import", dest="imports", nargs="*", default=[], help="modules to import first")
    add(
        "--fixed",
        nargs="*",
        default=[],
        help="arguments whose values must not be changed, such as positions in a floating tensor",
    )
    add("--columns", nargs="*", default=[], help="only these columns")
    add(
        "--slow",
        action="store_true",
        help="also run columns that need a C++ compiler, gigabytes of memory or several processes",
    )
    add("--timeout", type=float, default=120.0, help="seconds for each column (120)")
    add("--json", type=Path, help="write the report there as JSON")
    add("--markdown", type=Path, help="write the report there as Markdown")
    add(
        "--conformance",
        type=Path,
        help="write the matrix of fusewheel's own operators there; with --columns only these are "
        "run, and the others stay as they are; without, all but 'free threads' and 'huge'",
    )
    add("--operators", nargs="*", default=[], help="with --conformance: only these operators")
    return found
