"""A C++ program that runs models in a process without Python."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from fusewheel._core.process import run_program
from fusewheel._torch.builtins import cxx11_abi
from fusewheel.doctor.case import Tensors

SOURCE = Path(__file__).with_name("run_model.cpp")
SECONDS = 600


class NoCompilerError(Exception):
    """There is no C++ compiler."""


@functools.cache
def program() -> Path:
    """The program, compiled once in a process and deleted when the process ends.

    Raises:
        NoCompilerError: neither `CXX` nor the path names one.
        ChildError: the compiler failed, or took too long.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise NoCompilerError("no C++ compiler: neither CXX nor the path names one")
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / SOURCE.stem
    here = Path(torch.__file__).parent
    flags = ("-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={int(cxx11_abi)}")
    links = (f"-L{here / 'lib'}", f"-Wl,-rpath,{here / 'lib'}", "-ltorch_cpu", "-lc10", "-ldl")
    command = (compiler, *flags, f"-isystem{here / 'include'}", SOURCE, "-o", path, *links)
    run_program(command, SECONDS)
    return path


def run(models: Iterable[tuple[Path, Sequence[torch.Tensor]]]) -> list[Tensors]:
    """The outputs of models (`.pt2` or TorchScript) for their inputs.

    The program loads every library that `torch.ops.load_library` has loaded here.

    Raises:
        NoCompilerError: there is no compiler.
        ChildError: the program or the compiler failed, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        jobs, outputs = [], []
        for i, (model, inputs) in enumerate(models):
            given, result = Path(folder) / f"{i}.in", Path(folder) / f"{i}.out"
            torch.save(list(inputs), given)
            jobs += [model, given, result]
            outputs.append(result)
        command = (program(), *sorted(torch.ops.loaded_libraries), "--", *jobs)
        run_program(command, SECONDS)
        return [torch.load(path) for path in outputs]
