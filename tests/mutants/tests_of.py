"""Which tests know a file: those of its name first, because they are the likeliest to turn red."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stems import owner

EMULATED = "tests/cuda_emulated"
# They are compiled with sanitizers, which watch memory themselves and must be loaded first.
UNMARKED = {"LD_PRELOAD": "", "GLIBC_TUNABLES": ""}
READ = "python/fusewheel/compiler/read"
# Beside the tests of operators, for what many operators share.
BACKEND = ("tests/ops/test_refusals.py", "tests/ops/loss/test_cross_entropy.py")
SHARED = {
    "cpu_kernels/simd/": ("tests/ops/test_vector_math.py",),
    "cpu_kernels/processor.": ("tests/native",),
    "cpu_kernels/backend.": BACKEND,
    "cpu_kernels/engine/": ("tests/engine", "-m", "not nightly"),
    "cpu_kernels/attention/": ("tests/native/test_choices.py",),
    "cpu_kernels/norm/": ("tests/ops/norm/test_nan_bits.py",),
    "cpu_kernels/matmul/": (
        "tests/ops/linear/test_every_decade.py",
        "tests/ops/linear/test_many_rows.py",
        "tests/quantization/test_rounding.py",
        "tests/native/test_choices.py",
    ),
    "cuda_kernels/backend.": BACKEND,
    "cuda_kernels/": (EMULATED,),
}
# The sources of products, which are no operators, and the operators or families that they compute.
PRODUCTS = dict.fromkeys(
    ("matmul", "activations", "prepare", "products"), ("linear", "grouped_linear")
)
# Of these the one that a file is there for, by how the file's name begins.
MAINLY = {
    "activations": "linear_int8",
    "prepare": "linear_int8",
    "int8": "linear_int8",
    "integer": "linear_int4",
    "digit": "linear_int4",
    "block": "linear_blocks",
}
# Of an operator: the tests of numbers, then those that run over every operator.
NUMBERS = ("test_values.py", "test_autograd.py", "test_fuzz.py")
# These say nothing of kernels that the others do not say, and take long.
UNTRACED = ("test_compilers.py", "test_conformance.py", "test_unbacked.py", "test_huge.py")
# Of patterns: hundreds of small graphs, in seconds.
QUICK = "tests/compiler/test_near_misses.py"
# Of columns: tests that have a column's name, the quickest first.
COLUMNS = (
    "tests/doctor/test_limits.py",
    "tests/doctor/test_defects.py",
    "tests/doctor/test_aten.py",
    "tests/ops/test_conformance.py",
)
# Real operators, in which a column must find nothing.
SOUND = "(muladd or add_out or rope_ or cross_entropy)"


@dataclass(frozen=True)
class Run:
    """One run of pytest.

    Attributes:
        arguments: of pytest.
        env: variables of its environment, beside what every run has.
    """

    arguments: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments that are needed to run one of the tests."""
        if "--operator" not in self.arguments:
            return ()
        return self.arguments[self.arguments.index("--operator") :]


def operators(root: Path) -> dict[str, str]:
    """Every operator and its family."""
    files = (root / "python" / "fusewheel" / "ops").glob("*/[!_]*.py")
    return {file.stem: file.parent.name for file in files}


def operators_with(stems: Sequence[str], path: Path, root: Path) -> list[str]:
    """The operators among the sources that include a file, and those that its products compute, or
    the one that the file belongs to; if there is none of these, all of the file's family.
    """
    known = operators(root)
    computed = {*stems, *(name for stem in stems for name in PRODUCTS.get(stem, ()))}
    found = [o for o, family in known.items() if computed & {o, family}]
    if not found and (one := owner(path.stem, known)) is not None:
        found = [one]
    found = found or [o for o, family in known.items() if family == path.parent.name]
    return sorted(found)


def operator_tests(stem: str, root: Path, of_numbers: bool = False) -> list[Run]:
    """The tests of one operator, the likeliest to turn red first; or of its numbers only."""
    ops = root / "tests" / "ops"
    known = operators(root)
    own = [
        path
        for path in sorted(ops.glob(f"*/test_{stem}*.py"))
        if owner(path.stem.removeprefix("test_"), known) == stem
    ]
    numbers = [ops / name for name in NUMBERS]
    first = numbers if of_numbers else [numbers[0], *own, *numbers[1:]]
    others = [path for path in sorted(ops.glob("test_*.py")) if path.name not in UNTRACED]
    groups = [first] if of_numbers else [first, [path for path in others if path not in numbers]]
    return [
        Run((*(str(path.relative_to(root)) for path in group), "--operator", stem))
        for group in groups
    ]


def level_of(file: Path) -> str:
    """The level of instructions that an object file is compiled for; empty if it serves all."""
    found = re.search(r"fusewheel_cpu_(?:x86_64_)?(\w+)\.dir", str(file))
    return found[1] if found else ""


def shared_tests(path: Path) -> list[Run]:
    """What tests kernels as a whole."""
    return [
        Run(tests, UNMARKED if EMULATED in tests else {})
        for prefix, tests in SHARED.items()
        if str(path).startswith(prefix)
    ]


def parts(stems: Sequence[str], first: str, root: Path) -> list[list[str]]:
    """Operators in the order in which they are tried: two, then four, then all the others.

    The one of a file is the first; then those of as many families as there are.
    """
    begins = (operator for name, operator in MAINLY.items() if first.startswith(name))
    first = next(begins, first)
    families: dict[str, list[str]] = {}
    known = operators(root)
    for stem in sorted(stems, key=lambda stem: (stem != first, stem)):
        families.setdefault(known[stem], []).append(stem)
    order: list[str] = []
    while len(order) < len(stems):
        order += [own.pop(0) for own in families.values() if own]
    return [part for part in (order[:2], order[2:6], order[6:]) if part] or [[]]


def pattern_tests(path: Path, root: Path) -> list[Run]:
    """The tests of a pattern, or of those that read graphs with a file of `read`."""
    stems = _patterns_with(path, root)
    words = re.compile("|".join(rf"(?<![a-z]){stem}(?![a-z])" for stem in {path.stem, *stems}))
    counted = {
        file: len(words.findall(file.read_text())) + 100 * (file.stem == f"test_{path.stem}")
        for file in (root / "tests" / "compiler").glob("test_*.py")
    }
    own = {f"test_{stem}" for stem in (path.stem, *stems)}
    known = sorted((f for f, count in counted.items() if count), key=lambda f: -counted[f])
    # The quickest, the tests of this name, those that speak of it, and whole models, which take
    # longest.
    first = [file for file in known if file.stem in own]
    models = [file for file in known if "models" in file.stem]
    others = [f for f in known if f not in (*first, *models, root / QUICK)]
    quick = [file for file in (root / QUICK,) if file.exists()]
    groups = ([*quick, *first], others, models)
    return [Run(tuple(str(f.relative_to(root)) for f in group)) for group in groups if group]


def _patterns_with(path: Path, root: Path) -> set[str]:
    """The patterns that need a file, themselves or through others; the file itself if it is one."""
    if not str(path).startswith(READ):
        return {path.stem}
    found: set[str] = set()
    todo, seen = [path.stem], {path.stem}
    while todo:
        wanted = rf"compiler\.read\.{todo.pop()}\b"
        for room in ("read", "patterns"):
            for file in (root / "python/fusewheel/compiler" / room).glob("*.py"):
                if not re.search(wanted, file.read_text()):
                    continue
                if room == "patterns":
                    found.add(file.stem)
                elif file.stem not in seen:
                    seen.add(file.stem)
                    todo.append(file.stem)
    return found


def column_names(text: str) -> list[str]:
    """The names of the columns that a module declares."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COLUMNS":
            for part in ast.walk(node.value):
                # Column("name", ...), or ("name", ...) where a loop makes the columns.
                values = part.args if isinstance(part, ast.Call) else getattr(part, "elts", [])
                first = values[0] if values else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.append(first.value)
    return found


def column_tests(path: Path, root: Path) -> list[Run]:
    """What the columns in a file say, their planted defects, and operators in which they find
    nothing; what the tests say of several columns; then what else speaks of them.
    """
    names = column_names((root / path).read_text())
    chosen = " or ".join(f"({name.replace(' ', ' and ')})" for name in names)
    said = re.compile("|".join([rf"columns\.{path.stem}\b", rf"import {path.stem}\b"]))
    quoted = re.compile("|".join(rf"\"{re.escape(name)}\"" for name in names) or "$^")
    others = [
        str(file.relative_to(root))
        for file in sorted((root / "tests" / "doctor").glob("test_*.py"))
        if str(file.relative_to(root)) not in COLUMNS
        if said.search(text := file.read_text()) or quoted.search(text)
    ]
    chosen = f"({chosen}) and (not test_conformance or {SOUND})"
    chosen = f"{chosen} or (test_limits and not test_what_a_column_says)"
    return [Run((*COLUMNS, "-k", chosen)), *([Run(tuple(others))] if others else [])]
