"""A copy of the repository, and libraries built from it: nothing is ever broken in the original."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from levels import NATIVE

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Library:
    """A library of kernels.

    Attributes:
        package: the package that it is in.
        build: the folder of its build in the package: other sessions build there too, and what a
            cache of compilers has of these serves here.
        options: of the build.
    """

    package: str
    build: str
    options: tuple[str, ...] = ()


# What is built for each kind of mutant. Mutants of Python files are tried on the CPU's kernels.
LIBRARIES = {
    "cpu": Library("fusewheel-cpu", "build/quick"),
    "cuda": Library("fusewheel-cuda", "build/emulated", ("-Ccmake.define.FUSEWHEEL_EMULATED=ON",)),
}


class BuildError(Exception):
    """The sources do not compile; the message is the compiler's."""


def tracked(root: Path) -> set[Path]:
    """The files of a repository, relative to it, those that are new among them."""
    command = ("git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard")
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {Path(name) for name in listed.split("\0") if name and (root / name).is_file()}


def synchronise(root: Path, copy: Path) -> None:
    """Makes a folder equal to the repository. What is equal is not written, nor built again."""
    files = tracked(root)
    for file in files:
        source, target = root / file, copy / file
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    for target in [path for path in copy.rglob("*") if path.is_file()]:
        file = target.relative_to(copy)
        if file not in files and "build" not in file.parts:
            target.unlink()


@dataclass(frozen=True)
class Users:
    """What a file is part of.

    Attributes:
        objects: the object files that it is compiled into, relative to the build, and their names.
        stems: the names of the sources that include it.
    """

    objects: dict[Path, str]
    stems: list[str]


class Workspace:
    """A copy of the repository, and the kernels that its mutants are tried on.

    Args:
        folder: where everything is kept until the next time.
        kernels: which of the two kernel libraries is built, and used by the tests.
    """

    def __init__(self, folder: Path, kernels: str) -> None:
        self.folder = folder.resolve()
        self.tree = self.folder / "tree"
        self.library = LIBRARIES[kernels]
        self.build = self.tree / "packages" / self.library.package / self.library.build
        self.sound = self.folder / "sound"
        self.site = self.folder / "site-packages"
        self.package = self.site / self.library.package.replace("-", "_")
        self._compiled: set[Path] = set()

    def prepare(self, root: Path = ROOT) -> None:
        """Copies the repository, builds its packages and keeps what was built."""
        synchronise(root, self.tree)
        if self.sound.exists():  # the last time may have ended within a mutant
            shutil.rmtree(self.build, ignore_errors=True)
            shutil.copytree(self.sound, self.build, symlinks=True)
        shutil.rmtree(self.site, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        pip += [str(self.site), "--no-build-isolation"]
        package = str(self.tree / "packages" / self.library.package)
        _run([*pip, f"-Cbuild-dir={self.library.build}", *self.library.options, package])
        _run([*pip, str(self.tree / "packages" / "fusewheel")])
        self._use_sources()
        shutil.rmtree(self.sound, ignore_errors=True)
        shutil.copytree(self.build, self.sound, symlinks=True)
        # As they are built: with lines, which some tests ask for, and comparable with mutants.
        self._recall_libraries()

    def prepare_beside(self, other: Workspace, root: Path = ROOT) -> None:
        """Copies the repository and takes what another workspace has built."""
        synchronise(root, self.tree)
        shutil.rmtree(self.site, ignore_errors=True)
        shutil.copytree(other.site, self.site, symlinks=True)
        self._use_sources()

    def _use_sources(self) -> None:
        """Of the Python package only what pip says of it is used: its files are the copy's."""
        for name in ("fusewheel", "fusewheel_pytest"):
            installed = self.site / name
            if installed.is_symlink():
                installed.unlink()
            else:
                shutil.rmtree(installed)
            installed.symlink_to(self.tree / "python" / name)

    def level(self) -> str:
        """The level of instructions that the CPU's kernels choose here."""
        return _run([sys.executable, "-c", NATIVE], PYTHONPATH=str(self.site)).strip()

    def write(self, path: Path, text: str) -> None:
        """Changes a file of the copy; its time stays, which is what the build goes by."""
        file = self.tree / path
        times = file.stat()
        file.write_text(text)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def users(self, path: Path) -> Users:
        """What is compiled from a file, and the sources of that.

        A file that nothing else includes stands for the header of the same name.
        """
        command = ("ninja", "-C", str(self.build), "-t", "deps")
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        included = {
            Path(head.partition(":")[0]): {line.strip() for line in lines}
            for head, *lines in (part.splitlines() for part in listed.strip().split("\n\n"))
        }
        files, headers = (
            {str(self.tree / name), os.path.relpath(self.tree / name, self.build)}
            for name in (path, path.with_suffix(".h"))
        )
        objects = {o: _stem(o) for o, deps in included.items() if deps & files}
        stems = {_stem(o) for o, deps in included.items() if deps & (files | headers)}
        return Users(objects, sorted(stems))

    def compile(self, objects: Iterable[Path]) -> bool:
        """Compiles these again and links; whether the library is another one than before.

        Raises:
            BuildError: they do not compile.
        """
        self._compiled |= (wanted := set(objects))
        for file in wanted:
            (self.build / file).unlink(missing_ok=True)
        _run(["cmake", "--build", str(self.build)])
        changed = False
        for library in self.build.glob("libfusewheel_*.so"):
            used = self.package / library.name
            if library.read_bytes() != used.read_bytes():
                changed = True
                _replace(library, used)
        return changed

    def take_away(self, path: Path, text: str) -> list[tuple[Path, bytes]]:
        """Makes the tests see the sound sources for a while; returns the library that was built."""
        self.write(path, text)
        built = [(file, file.read_bytes()) for file in self.package.glob("libfusewheel_*.so")]
        self._recall_libraries()
        return built

    def put_back(self, path: Path, text: str, built: list[tuple[Path, bytes]]) -> None:
        """The reverse of `take_away`, with the mutated text."""
        self.write(path, text)
        for file, content in built:
            file.unlink()
            file.write_bytes(content)

    def recall(self, path: Path, text: str) -> None:
        """Takes a mutant back: the file, and the library where that was built anew."""
        self.write(path, text)
        if not self._compiled:
            return
        logs = (self.sound / name for name in (".ninja_log", ".ninja_deps"))
        libraries = self.sound.glob("libfusewheel_*.so")
        for file in (*(self.sound / file for file in self._compiled), *libraries, *logs):
            _replace(file, self.build / file.relative_to(self.sound))
        self._compiled.clear()
        self._recall_libraries()

    def _recall_libraries(self) -> None:
        for library in self.sound.glob("libfusewheel_*.so"):
            _replace(library, self.package / library.name)


def _replace(source: Path, target: Path) -> None:
    """Copies a file; a process that has the old one mapped keeps it."""
    target.unlink(missing_ok=True)
    shutil.copy2(source, target)


def _stem(file: Path) -> str:
    return file.name.partition(".")[0]


def _run(command: Sequence[str], **env: str) -> str:
    """What a program prints; variables are put before those of the same name."""
    joined = {name: os.pathsep.join([v, os.environ.get(name, "")]) for name, v in env.items()}
    environment = {**os.environ, **joined}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise BuildError(done.stdout + done.stderr)
    return done.stdout
