"""Which files are broken, and how mutants are drawn: as many from each file as from another."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import Path

from mutants import cpp_source, harmless, python_source
from mutants.mutant import Mutant

EMULATOR = Path("cuda_kernels/emulation")
# Products of rounded activations and 8-bit codes by VNNI alone: few rows, and small groups.
VNNI_ALONE = {"int8_groups", "int8_rows"}
# The function that copies rows for products by instructions for bfloat16.
BFLOAT16_ALONE = "whole_rows("
# By kind; patterns bring along what they read graphs with. The emulator is no kernel.
FILES = {
    "cpu": (
        "cpu_kernels/**/*.cpp",
        "cpu_kernels/**/*.cc",
        "cpu_kernels/**/*.h",
        "packages/schema/operators/*/*.cpp",
    ),
    "cuda": ("cuda_kernels/**/*.cu", "cuda_kernels/**/*.h", "cuda_kernels/**/*.cc"),
    "patterns": ("python/fusewheel/compiler/patterns/*.py", "python/fusewheel/compiler/read/*.py"),
    "columns": ("python/fusewheel/doctor/columns/*.py",),
}


def files_of(kind: str, root: Path) -> list[Path]:
    """The files of a kind, relative to the repository, that have anything in them."""
    found = {path.relative_to(root) for pattern in FILES[kind] for path in root.glob(pattern)}
    found = {p for p in found if p.name != "__init__.py" and EMULATOR not in p.parents}
    return sorted(p for p in found if _can_run(p))


def _can_run(path: Path) -> bool:
    """Whether this processor has the instructions that a whole file is about."""
    if "amx" in path.stem:
        return "amx_tile" in _processor()
    integers = path.parent == Path("cpu_kernels/matmul") and path.stem in VNNI_ALONE
    return not integers or "vnni" in _processor()


@functools.cache
def _processor() -> str:
    """What this processor says of itself."""
    file = Path("/proc/cpuinfo")
    return file.read_text() if file.exists() else ""


def mutants_of(kind: str, path: Path, root: Path) -> list[Mutant]:
    """What can be broken in a file, without what does no harm."""
    text = (root / path).read_text()
    changes = (python_source if path.suffix == ".py" else cpp_source).changes(text)
    mutants = (Mutant(kind, path, text, change) for change in changes)
    return [m for m in mutants if harmless.reason(m) is None and _can_reach(m)]


def _can_reach(mutant: Mutant) -> bool:
    """Whether this processor has the instructions that the function around is about."""
    if BFLOAT16_ALONE not in harmless.header(mutant.text, mutant.change.start):
        return True
    return "avx512_bf16" in _processor() or "amx_bf16" in _processor()


def draw(kind: str, root: Path, seed: int) -> Iterator[Mutant]:
    """Mutants of a kind without end: its files take turns, in a random order.

    Of a file a line is drawn, then one of its mutants: a line with many operators is one line.
    """
    numbers = random.Random(f"{seed} {kind}")
    while True:
        files = files_of(kind, root)
        numbers.shuffle(files)
        for path in files:
            lines: dict[int, list[Mutant]] = {}
            for mutant in mutants_of(kind, path, root):
                lines.setdefault(mutant.line, []).append(mutant)
            if lines:
                yield numbers.choice(lines[numbers.choice(sorted(lines))])
