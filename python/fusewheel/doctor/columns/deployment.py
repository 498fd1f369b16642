"""AOTInductor packages and TorchScript files, also in a C++ program without Python."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from fusewheel._core.process import ChildError
from fusewheel._torch import inductor
from fusewheel._torch.dispatcher import registrations
from fusewheel.doctor import program, traps
from fusewheel.doctor.case import Case, Tensors, quiet
from fusewheel.doctor.column import Column, Elsewhere, Finding, NotApplicable, applies
from fusewheel.doctor.columns.compilers import own
from fusewheel.doctor.columns.memory import same
from fusewheel.doctor.columns.torchscript import traced
from fusewheel.doctor.traps import Trap

THEME = "deployment"


class _All(torch.nn.Module):
    """One module for many cases, because compiling a module for one case takes nearly as long."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, *tensors: Tensor) -> Tensors:
        """The results of all cases, from the tensors of all cases."""
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
    """The results of each case, from the results of all cases."""
    rest = iter(together)
    return [tuple(next(rest) for _ in case.results()) for case in cases]


@contextmanager
def _package(cases: Sequence[Case]) -> Iterator[Path]:
    """An AOTInductor package, which exists during the block."""
    for case in cases:
        applies(not case.subject.random, "random")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        # No processes for compiling: they would outlive this process, which the doctor forked.
        with quiet(), inductor.configured(compile_threads=1):
            exported = torch.export.export(_All(cases), _inputs(cases), strict=False)
            inductor.package(exported, str(path))
        yield path


def _in_python(cases: Sequence[Case]) -> list[Tensors]:
    with _package(cases) as path, quiet():
        loaded = inductor.load_package(str(path))
        loaded(*_inputs(cases))
        again = loaded(*_inputs(cases))
    return _results(cases, again)


def _needs_no_python(cases: Sequence[Case]) -> None:
    for case in cases:
        schema = case.subject.schema
        if schema is not None:
            dump = registrations(f"{schema.name}.{schema.overload_name}".rstrip("."))
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
    except ChildError as error:
        raise Finding(traps.CPP, error.explanation) from error


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
