"""Programs from emulated CUDA sources: cuda_kernels/emulation/cuda.h says what that can show."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Its library is not linked: the emulation has the functions that are called at each access.
WATCH = ("-fsanitize=thread",)
EMULATION = ROOT / "cuda_kernels" / "emulation"
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover", "-fno-omit-frame-pointer")

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles sources of this folder, and device parts of cuda_kernels, into one program."""
    compiler = shutil.which("g++")
    assert compiler is not None, "g++ is needed, as it is to build the wheels"
    emulations: dict[tuple[str, ...], list[Path]] = {}

    def compile_objects(sources: Iterable[Path], flags: tuple[str, ...]) -> list[Path]:
        folder = tmp_path_factory.mktemp("objects")
        command = [compiler, "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
        command += ["-Wno-unknown-pragmas", "-fno-strict-aliasing", *flags]
        command += ["-DFUSEWHEEL_EMULATED=1", f"-I{ROOT / 'cuda_kernels'}"]
        command += [f"-I{ROOT / 'packages' / 'schema' / 'include'}", "-x", "c++", "-c"]
        objects = []
        for source in sources:
            objects.append(folder / f"{source.name}.o")
            subprocess.run([*command, str(source), "-o", str(objects[-1])], check=True)
        return objects

    def compile_program(*sources: str, flags: tuple[str, ...] = (), watched: bool = False) -> Path:
        if flags not in emulations:
            emulations[flags] = compile_objects(sorted(EMULATION.glob("*.cc")), flags)
        kernels = (HERE / source for source in sources)
        objects = compile_objects(kernels, (*flags, *WATCH) if watched else flags)
        program = objects[0].with_name("program")
        command = [compiler, *flags, *map(str, (*objects, *emulations[flags]))]
        subprocess.run([*command, "-o", str(program)], check=True)
        return program

    return compile_program


def run(program: Path, *arguments: str, seed: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a program with the threads of each block in the order that `seed` gives."""
    environment = os.environ | {
        "FUSEWHEEL_EMULATION_SEED": str(seed),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    return subprocess.run(
        [str(program), *arguments], env=environment, capture_output=True, text=True, check=False
    )
