"""Programs from emulated CUDA sources: cuda_kernels/emulation/cuda.h says what that can show."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover", "-fno-omit-frame-pointer")

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles sources of this folder, and device parts of cuda_kernels, into one program."""
    compiler = shutil.which("g++")
    assert compiler is not None, "g++ is needed, as it is to build the wheels"

    def compile_program(*sources: str, flags: tuple[str, ...] = ()) -> Path:
        program = tmp_path_factory.mktemp("emulated") / "program"
        command = [compiler, "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
        command += ["-Wno-unknown-pragmas", "-fno-strict-aliasing", *flags]
        command += ["-DFUSEWHEEL_EMULATED=1", f"-I{ROOT / 'cuda_kernels'}"]
        command += [f"-I{ROOT / 'packages' / 'schema' / 'include'}", "-x", "c++"]
        command += [str(HERE / source) for source in sources]
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
