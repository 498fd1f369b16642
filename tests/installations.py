"""Installations put together in a folder: copies of the installed packages, one thing changed."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from copies import run_beside_torch

STUB_TORCH = """
class version:
    cuda = {cuda!r}
    hip = None

class ops:
    @staticmethod
    def load_library(path):
        raise OSError("the stand-in for torch loads nothing")

__version__ = version.__version__ = {version!r}
"""
# What a program needs that runs on a copy of everything and on nothing else.
ISOLATED = ("-I", "-S")


class Installation:
    """A folder that stands for a site-packages."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def package(self, name: str, version: str | None = None) -> Path:
        """Copies an installed package with its metadata, as if it were another version."""
        source = Path(importlib.import_module(name).__file__).parent
        # With what Python compiled of it, which it would do again in each copy.
        copy = Path(shutil.copytree(source, self.folder / name))
        for metadata in importlib.metadata.distribution(name).files or ():
            if metadata.name in ("METADATA", "entry_points.txt"):
                target = self.folder / metadata.parent.name / metadata.name
                target.parent.mkdir(exist_ok=True)
                shutil.copy(metadata.locate(), target)
        if version is not None and (facts := copy / "build.json").exists():
            facts.write_text(json.dumps({**json.loads(facts.read_text()), "version": version}))
        elif version is not None:
            (copy / "_core" / "version.py").write_text(f"__version__ = {version!r}\n")
        return copy

    def torch(self, version: str, cuda: str | None = None) -> None:
        """A stand-in for torch that has a version and nothing else."""
        package = self.folder / "torch"
        package.mkdir()
        (package / "__init__.py").write_text(STUB_TORCH.format(version=version, cuda=cuda))

    def run(self, text: str, *flags: str, path: str = "", **environment: str) -> Outcome:
        """Runs a program that finds this folder before (or, isolated, instead of) all others.

        Where an interpreter is told nothing else, torch is imported already.
        """
        text = f"import sys; sys.path.insert(0, {path or str(self.folder)!r})\n{text}"
        if not flags and not environment:
            return Outcome(run_beside_torch(text, self.folder.parent))
        done = subprocess.run(
            [sys.executable, *flags, "-c", text],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder.parent,
            env={**os.environ, **environment},
            timeout=120,
        )
        return Outcome(done)


class Outcome:
    """What a program left behind: its output, and the last line of its complaint."""

    def __init__(self, done: subprocess.CompletedProcess[str]):
        self.code, self.output, self.errors = done.returncode, done.stdout, done.stderr

    def error(self) -> str:
        """Type and message of the exception that ended it, "" if none did."""
        head, _, last = self.errors.rpartition("\nfusewheel.errors.")
        return last if head and self.code == 1 else ""


def fake_driver(folder: Path, version: int) -> Path:
    """A `libcuda.so.1` that supports CUDA `version` (13000 for 13.0) and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "driver.c"
    source.write_text(f"int cuDriverGetVersion(int* v) {{ *v = {version}; return 0; }}")
    library = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return folder


def zipped(site: Installation, *names: str) -> Path:
    """Moves packages of an installation, with their metadata, into a zip file."""
    archive = site.folder.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        for folder in list(site.folder.iterdir()):
            if folder.name.partition("-")[0] in names:
                for path in sorted(folder.rglob("*")):
                    file.write(path, str(path.relative_to(site.folder)))
                shutil.rmtree(folder)
    return archive
