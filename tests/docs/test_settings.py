"""docs/settings.md lists the environment variables that the sources read, and no others."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

from fusewheel.compiler.cost.rates import VARIABLES
from scripts import ROOT

PAGE = ROOT / "docs" / "settings.md"
SUFFIXES = {".py", ".cc", ".cpp", ".h", ".cu"}
# A name alone between quotes is a variable, but in tests, which also make up names.
NAMED = re.compile(r"""["'](FUSEWHEEL_[A-Z0-9_]*[A-Z0-9])["']""")
READ = re.compile(r"""(?:environ\.get\(|environ\[|getenv\()["'](FUSEWHEEL_\w+)["']""")

# Arguments of the model, and a former name.
NO_OPTIONS = {"args", "kwargs", "filter"}


def _files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [path for path in found if path.suffix in SUFFIXES]


def _names(files: list[Path], pattern: re.Pattern[str]) -> set[str]:
    return {name for path in files for name in pattern.findall(path.read_text(encoding="utf-8"))}


def test_every_variable_is_on_the_page() -> None:
    ours = _files("python", "cpu_kernels", "cuda_kernels", "wheels")
    read = _names([*ours, ROOT / "noxfile.py"], NAMED) | _names(_files("tests"), READ)
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    listed = {name for row in rows for name in re.findall(r"`(FUSEWHEEL_\w+)`", row)}
    assert listed == read | set(VARIABLES)


def test_every_option_is_on_the_page() -> None:
    """Of each function in the table: all that it takes beside its model, and nothing else."""
    text = PAGE.read_text(encoding="utf-8").partition("## Options")[2]
    rows = re.findall(r"^\| `(fusewheel[\w.]*)` \| (`.*?) \|", text, re.MULTILINE)
    assert len(rows) > 6
    for name, options in rows:
        module, _, function = name.rpartition(".")
        found = inspect.signature(getattr(importlib.import_module(module), function)).parameters
        optional = {key for key, p in found.items() if p.default is not inspect.Parameter.empty}
        assert set(re.findall(r"`(\w+)`", options)) == optional - NO_OPTIONS, name
