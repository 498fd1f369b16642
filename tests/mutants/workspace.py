"""A copy of the repository, and libraries built from it: nothing is ever broken in the original."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What is built for each kind of mutant: the package, and options of its build. Mutants of Python
# files are tried on the CPU's kernels.
PACKAGES = {"cpu": "fusewheel-cpu", "cuda": "fusewheel-cuda"}
OPTIONS: dict[str, tuple[str, ...]] = {
    "cpu": (),
    "cuda": ("-Ccmake.define.FUSEWHEEL_EMULATED=ON",),
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
        if target.relative_to(copy) not in files:
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
    """The copy, and the kernels of one kind ("cpu" or "cuda") built from it.

    Args:
        folder: where everything is kept until the next time.
        kernels: which of the two kernel libraries is built, and used by the tests.
    """

    def __init__(self, folder: Path, kernels: str) -> None:
        folder = folder.resolve()
        self.tree = folder / "tree"
        self.kernels = kernels
        self.build = folder / kernels / "build"
        self.sound = folder / kernels / "sound"
        self.site = folder / kernels / "site-packages"
        self.package = self.site / PACKAGES[kernels].replace("-", "_")

    def prepare(self, root: Path = ROOT) -> None:
        """Copies the repository, builds its packages and keeps what was built."""
        synchronise(root, self.tree)
        if self.sound.exists():  # the last time may have ended within a mutant
            self._recall_build()
        shutil.rmtree(self.site, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        pip += [str(self.site), "--no-build-isolation"]
        package = str(self.tree / "packages" / PACKAGES[self.kernels])
        _run([*pip, f"-Cbuild-dir={self.build}", *OPTIONS[self.kernels], package])
        _run([*pip, str(self.tree / "packages" / "fusewheel")])
        # Of the Python package only what pip says of it is used: its files are those of the copy.
        for name in ("fusewheel", "fusewheel_pytest"):
            shutil.rmtree(self.site / name)
            (self.site / name).symlink_to(self.tree / "python" / name)
        shutil.rmtree(self.sound, ignore_errors=True)
        shutil.copytree(self.build, self.sound, symlinks=True)

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
        file = self.tree / path
        objects = {o: _stem(o) for o, deps in included.items() if str(file) in deps}
        header = str(file.with_suffix(".h"))
        stems = {_stem(o) for o, deps in included.items() if deps & {str(file), header}}
        return Users(objects, sorted(stems))

    def compile(self, objects: Iterable[Path]) -> bool:
        """Compiles these again and links; whether the library is another one.

        Raises:
            BuildError: they do not compile.
        """
        for file in objects:
            (self.build / file).unlink(missing_ok=True)
        _run(["cmake", "--build", str(self.build)])
        changed = False
        for library in self.build.glob("libfusewheel_*.so"):
            sound = (self.sound / library.name).read_bytes()
            changed = changed or library.read_bytes() != sound
            shutil.copy2(library, self.package)
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
        if path.suffix != ".py":
            self._recall_build()
            self._recall_libraries()

    def _recall_libraries(self) -> None:
        for library in self.sound.glob("libfusewheel_*.so"):
            (self.package / library.name).unlink()
            shutil.copy2(library, self.package)

    def _recall_build(self) -> None:
        shutil.rmtree(self.build, ignore_errors=True)
        shutil.copytree(self.sound, self.build, symlinks=True)


def _stem(file: Path) -> str:
    return file.name.partition(".")[0]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(done.stdout + done.stderr)
