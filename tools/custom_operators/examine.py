"""Runs the doctor over the operators of one package, in a process of its own.

    python tools/custom_operators/examine.py NAME FILE

writes to the file, as JSON, what was found, or the error if the package cannot be loaded.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fusewheel import doctor
from tried import PACKAGES, Package


def examined(package: Package) -> dict[str, Any]:
    """The version of the package, and a report for each operator; or the error."""
    try:
        version = importlib.metadata.version(package.name)
    except importlib.metadata.PackageNotFoundError:
        return {"version": "", "error": "pip finds no wheel for this Python and platform"}
    try:
        operators = importlib.import_module(package.module).operators()
    except (ImportError, OSError, RuntimeError) as error:
        return {"version": version, "error": str(error.__cause__ or error)}
    return {"version": version, "reports": list(reports(operators))}


def reports(operators: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """What the doctor says of each operator."""
    for tried in operators:
        report = doctor.check(tried.op, tried.samples, fixed=tried.fixed)
        print(str(report).splitlines()[0], flush=True)
        yield report.to_dict()


if __name__ == "__main__":
    name, file = sys.argv[1:]
    torch.set_num_threads(1)  # the doctor forks
    found = examined(next(package for package in PACKAGES if package.name == name))
    Path(file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
