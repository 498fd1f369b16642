"""Refuses a wheel that would not work everywhere.

Checks the tag, the size, what is in it, that its libraries use nothing of torch or Python beyond
the stable ABIs (`abi3audit`, `torch-abi-audit`, and the symbol tables themselves), that they export
nothing but `fusewheel_*`, need no newer system than the tag says, and name no folder of the machine
they were built on.

    python wheels/audit.py WHEEL...
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import symbols

MEGABYTE = 1_000_000
# Every operator has three levels of instructions, and code for five GPU architectures.
SIZE_LIMITS = {
    "fusewheel": MEGABYTE,
    "fusewheel_cpu": 3 * MEGABYTE,
    "fusewheel_cuda": 10 * MEGABYTE,
}
# The same binary under two tags: the second for free-threaded Python (retag.py).
TAGS = {("cp39", "abi3"), ("py3", "none")}
NEWEST_GLIBC = (2, 28)
KERNEL_FILES = {"__init__.py", "build.json", "py.typed"}
# What C++ programs and kernel libraries of other devices build with: CMake finds it in this wheel.
CMAKE_PACKAGE = {"fusewheel_cpu": "share/cmake/fusewheel/fusewheel-config.cmake"}
CPP_FILES = re.compile(r"include/fusewheel/.+\.h|share/fusewheel/.+\.cpp|share/cmake/.+\.cmake")
# pytest loads the plug-in in every run, which must not import the rest.
PACKAGES = {"fusewheel": ("fusewheel/", "fusewheel_pytest/")}
# Where this machine keeps sources, compilers and headers, and where cibuildwheel's container does,
# which is audited from outside: no error message should show it.
HERE = {str(Path(__file__).resolve().parents[1]), sys.prefix, str(Path.home()) + "/"}
FOLDERS = HERE | {"/project/", "/opt/python/"}


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
    libraries = {n for n in names if n.endswith((".so", ".dylib", ".dll", ".pyd"))}
    own = (*PACKAGES.get(name, (f"{name}/",)), f"{name}-")
    strangers = sorted(n for n in names if not n.startswith(own))
    if strangers or any("__pycache__" in n for n in names):
        yield f"files that do not belong there: {strangers or 'bytecode'}"
    if name == "fusewheel":
        if (python, abi, platform) != ("py3", "none", "any"):
            yield f"tag {python}-{abi}-{platform}, expected py3-none-any"
        if libraries:
            yield f"the pure-Python wheel holds {sorted(libraries)}"
        if f"{name}/ops/public.pyi" not in names:
            yield "the type stub of the operators is missing (wheels/stubs.py writes it)"
        return
    if (python, abi) not in TAGS:
        yield f"tag {python}-{abi}-{platform}, expected cp39-abi3 or py3-none"
    # A repaired wheel lists its folders too.
    files = (n for n in names if not n.endswith("/"))
    here = {n.removeprefix(f"{name}/") for n in files if n.startswith(f"{name}/")}
    expected = KERNEL_FILES | set(library_names(platform, name, "fusewheel_schema"))
    if name in CMAKE_PACKAGE:
        expected.add(CMAKE_PACKAGE[name])
        expected |= {file for file in here if CPP_FILES.fullmatch(file)}
    if here != expected:
        yield f"it holds {sorted(here)}, expected {sorted(expected)}"
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        for library in sorted(file for file in Path(folder, name).rglob("*") if file.is_file()):
            yield from folder_findings(library)
            if library.suffix == ".so":  # the symbol tables of other systems are left to the tools
                yield from library_findings(library, claimed_glibc(platform))
        yield from _tool_findings(wheel, Path(folder) / name)


def library_names(platform: str, *names: str) -> list[str]:
    """What libraries are called on a wheel's platform."""
    prefix = "" if platform.startswith("win") else "lib"
    ends = {"mac": ".dylib", "win": ".dll"}
    return [f"{prefix}{name}{ends.get(platform[:3], '.so')}" for name in names]


def claimed_glibc(platform: str) -> tuple[int, int]:
    """The oldest glibc that a platform tag promises to run on."""
    claims = re.findall(r"manylinux_(\d+)_(\d+)_", platform)
    return min((int(major), int(minor)) for major, minor in claims) if claims else (0, 0)


def library_findings(library: Path, glibc: tuple[int, int]) -> Iterator[str]:
    """What is wrong with one library of a wheel that claims to run on `glibc`."""
    yield from symbols.symbol_findings(library)
    if not (0, 0) < glibc <= NEWEST_GLIBC:
        yield f"the tag claims glibc {glibc}, expected {NEWEST_GLIBC} or older"
    if symbols.glibc(library) > glibc:
        yield (
            f"{library.name} needs glibc {symbols.glibc(library)}, its tag claims {glibc} "
            "(packages/schema/linkers/old_glibc.cmake)"
        )
    for name in symbols.needed(library):
        if not symbols.NEEDED.match(name):
            yield f"{library.name} needs {name}"


def folder_findings(library: Path) -> Iterator[str]:
    """Folders of the building machine that a file names."""
    content = library.read_bytes()
    for folder in sorted(FOLDERS):
        if folder.encode() in content:
            yield f"{library.name} names the folder {folder}"


def _tool_findings(wheel: Path, package: Path) -> Iterator[str]:
    commands = [["torch-abi-audit", "--check", "both", str(package)]]
    if "-abi3-" in wheel.name:
        commands.append(["abi3audit", "--strict", str(wheel)])
    for command in commands:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            yield f"{' '.join(command)}:\n{done.stdout}{done.stderr}"


def repeated(wheels: Sequence[Path]) -> list[str]:
    """Packages that are there twice under one tag: there must be exactly one wheel of each."""
    parts = (wheel.stem.split("-") for wheel in wheels)
    count = Counter((name, python, abi) for name, _version, *_, python, abi, _platform in parts)
    return ["-".join(key) for key, times in count.items() if times > 1]


def main(arguments: Sequence[str]) -> int:
    """Prints the findings of every wheel; returns 1 if there are any."""
    wheels = [Path(argument) for argument in arguments]
    twice = repeated(wheels)
    bad = not wheels or bool(twice)
    if bad:
        print(f"more than one wheel of {twice}" if twice else "no wheel")
    for wheel in wheels:
        found = list(findings(wheel))
        bad = bad or bool(found)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {'bad' if found else 'good'}")
        for finding in found:
            print(f"  {finding}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
