"""Refuses a wheel that would not work everywhere.

Checks the tag, the size, what is in it, that its libraries use nothing of torch or Python beyond
the stable ABIs (`abi3audit`, `torch-abi-audit`, and the symbol tables themselves), and that they
export nothing but `fusewheel_*`.

    python wheels/audit.py WHEEL...
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from elftools.elf.elffile import ELFFile

MEGABYTE = 1_000_000
# Three instruction sets and six GPU architectures of every operator; they grow with their number.
SIZE_LIMITS = {"fusewheel": MEGABYTE, "fusewheel_cpu": 2 * MEGABYTE, "fusewheel_cuda": 6 * MEGABYTE}
# C++ names of torch and c10 (mangled), and anything of Python's.
FORBIDDEN_SYMBOL = re.compile(r"^(_ZN?K?(2at|3c10|5torch)|_?Py)")
EXPORTED_SYMBOL = re.compile(r"^fusewheel_")


def findings(wheel: Path) -> Iterator[str]:
    """What is wrong with a wheel; nothing, for a good one."""
    name, _version, *_, python, abi, platform = wheel.stem.split("-")
    limit = SIZE_LIMITS[name]
    if wheel.stat().st_size > limit:
        yield f"{wheel.stat().st_size} bytes, the limit is {limit}"
    names = set(zipfile.ZipFile(wheel).namelist())
    if f"{name}/py.typed" not in names:
        yield "py.typed is missing"
    if not any(n.endswith("licenses/LICENSE") for n in names):
        yield "the licence is missing"
    libraries = {n for n in names if n.endswith(".so")}
    if name == "fusewheel":
        if (python, abi, platform) != ("py3", "none", "any"):
            yield f"tag {python}-{abi}-{platform}, expected py3-none-any"
        if libraries:
            yield f"the pure-Python wheel holds {sorted(libraries)}"
        if f"{name}/ops/__init__.pyi" not in names:
            yield "the type stub of the operators is missing (wheels/stubs.py writes it)"
        return
    if (python, abi) != ("cp39", "abi3") or not platform.startswith("manylinux"):
        yield f"tag {python}-{abi}-{platform}, expected cp39-abi3-manylinux"
    expected = {f"{name}/lib{name}.so", f"{name}/libfusewheel_schema.so"}
    if libraries != expected:
        yield f"libraries {sorted(libraries)}, expected {sorted(expected)}"
    yield from _tool_findings(wheel, name)


def _tool_findings(wheel: Path, name: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        for library in sorted(Path(folder).rglob("*.so")):
            yield from _symbol_findings(library)
        for command in (
            ["abi3audit", "--strict", str(wheel)],
            ["torch-abi-audit", "--check", "both", str(Path(folder) / name)],
        ):
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                yield f"{' '.join(command)}:\n{done.stdout}{done.stderr}"


def _symbol_findings(library: Path) -> Iterator[str]:
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        for symbol in table.iter_symbols():
            defined = symbol["st_shndx"] != "SHN_UNDEF"
            if FORBIDDEN_SYMBOL.match(symbol.name):
                yield f"{library.name} has the symbol {symbol.name}"
            elif defined and symbol.name and not EXPORTED_SYMBOL.match(symbol.name):
                yield f"{library.name} exports {symbol.name}"


def main(arguments: Sequence[str]) -> int:
    """Prints the findings of every wheel; returns 1 if there are any."""
    bad = False
    for wheel in map(Path, arguments):
        found = list(findings(wheel))
        bad = bad or bool(found)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {'bad' if found else 'good'}")
        for finding in found:
            print(f"  {finding}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
