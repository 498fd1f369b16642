"""Compiled ahead of time, and run by a C++ program in which there is no Python."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from fusewheel.doctor import program, traps
from fusewheel.doctor.case import Case, Tensors, quiet
from fusewheel.doctor.column import Column, Elsewhere, Finding, NotApplicable, applies
from fusewheel.doctor.columns.compilers import own
from fusewheel.doctor.columns.memory import same
from fusewheel.doctor.columns.torchscript import traced
from fusewheel.doctor.traps import Trap

THEME = "deployment"


class _All(torch.nn.Module):
    """One module of many cases, because compiling one takes nearly as long."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, *tensors: Tensor) -> Tensors:
        """The results of all, of the tensors of all."""
        results: list[Tensor] = []
        for case, given in zip(self.cases, _split(self.cases, tensors), strict=True):
            results += case.function(*given)
        return tuple(results)


def _split(cases: Sequence[Case], tensors: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    start = 0
    for case in cases:
        end = start + len(case.tensors)
        yield tensors[start:end]
        start = end


def _inputs(cases: Sequence[Case]) -> Tensors:
    return tuple(tensor for case in cases for tensor in own(case))


def _results(cases: Sequence[Case], together: Sequence[Tensor]) -> list[Tensors]:
    """Of each case, from those of all."""
    rest = iter(together)
    return [tuple(next(rest) for _ in case.results()) for case in cases]


@contextmanager
def _package(cases: Sequence[Case]) -> Iterator[Path]:
    """A package of AOTInductor, while the region lasts."""
    import torch._inductor.config as config

    for case in cases:
        applies(not case.subject.random, "random")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        # Processes that compile would outlive this one, which the doctor forks.
        with quiet(), config.patch(compile_threads=1):
            exported = torch.export.export(_All(cases), _inputs(cases), strict=False)
            torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
        yield path


def _in_python(cases: Sequence[Case]) -> list[Tensors]:
    with _package(cases) as path, quiet():
        loaded = torch._inductor.aoti_load_package(str(path))
        loaded(*_inputs(cases))
        again = loaded(*_inputs(cases))
    return _results(cases, again)


def _needs_no_python(cases: Sequence[Case]) -> None:
    for case in cases:
        schema = case.subject.schema
        if schema is not None:
            dump = torch._C._dispatch_dump(f"{schema.name}.{schema.overload_name}".rstrip("."))
            origin = next(line for line in dump.splitlines() if line.startswith("debug:"))
            applies(".py:" not in origin, "defined in Python")
        applies(all(t.device.type == "cpu" for t in case.tensors), "the program is for a CPU")


def _package_in_cpp(cases: Sequence[Case]) -> list[Tensors]:
    _needs_no_python(cases)
    with _package(cases) as path:
        return _results(cases, _run([(path, _inputs(cases))])[0])


def _torchscript_in_cpp(cases: Sequence[Case]) -> list[Tensors]:
    _needs_no_python(cases)
    with tempfile.TemporaryDirectory() as folder:
        models = []
        for i, case in enumerate(cases):
            path = Path(folder) / f"{i}.pt"
            with quiet():
                torch.jit.save(traced(case), path)
            models.append((path, own(case)))
        return _run(models)


def _run(models: Sequence[tuple[Path, Tensors]]) -> list[Tensors]:
    try:
        return program.run(models)
    except program.NoCompilerError as error:
        raise NotApplicable(str(error)) from error
    except (RuntimeError, subprocess.SubprocessError) as error:
        raise Finding(traps.CPP, str(error)[-600:]) from error


def _column(
    name: str,
    title: str,
    results: Callable[[Sequence[Case]], list[Tensors]],
    values: Trap,
    errors: Trap,
) -> Column:
    place = Elsewhere(results, lambda case, got: same(got, case.results(), values))
    return Column(name, THEME, title, place.check, most=1, slow=True, trap=errors, elsewhere=place)


COLUMNS = (
    _column(
        "AOTInductor",
        "a package, loaded and run twice",
        _in_python,
        traps.COMPILED_VALUES,
        traps.EXPORT,
    ),
    _column(
        "C++ TorchScript",
        "a TorchScript file, run by a program without Python",
        _torchscript_in_cpp,
        *(traps.CPP, traps.CPP),
    ),
    _column(
        "C++ package",
        "a package of AOTInductor, run by a program without Python",
        _package_in_cpp,
        *(traps.CPP, traps.CPP),
    ),
)
