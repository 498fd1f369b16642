"""Writes the files of a new operator: `nox -s new -- squared_relu --family activation`.

They compute `x * x`, elementwise, forward and backward on both devices, and pass every test. Where
the formula belongs a comment says so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = Path(__file__).with_name("new")
SCHEMA = Path("packages/schema/src/schema.cpp")
PLACES = {
    "STEM_operator.cpp.in": "packages/schema/operators/{family}/{stem}.cpp",
    "STEM.cpp.in": "cpu_kernels/{family}/{stem}.cpp",
    "STEM.cu.in": "cuda_kernels/{family}/{stem}.cu",
    "STEM.py.in": "python/fusewheel/ops/{family}/{stem}.py",
    "test_STEM.py.in": "tests/ops/{family}/test_{stem}.py",
}
LINES = (
    '    "{stem}(Tensor x) -> Tensor",\n    "{stem}_backward(Tensor grad, Tensor x) -> Tensor",\n'
)


def families(root: Path) -> list[str]:
    """The folders that operators are in."""
    packages = (root / "python" / "fusewheel" / "ops").glob("*/__init__.py")
    return sorted(path.parent.name for path in packages)


def write(root: Path, stem: str, family: str) -> list[Path]:
    """Writes the files into a checkout and returns their paths in it.

    Raises:
        ValueError: the name or the family will not do, or there is such an operator.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", stem):
        raise ValueError(f"{stem!r} is no name for an operator: use small letters, digits and _")
    if family not in families(root):
        raise ValueError(f"there is no family {family!r}, only {', '.join(families(root))}")
    schema = (root / SCHEMA).read_text()
    if f'"{stem}(' in schema:
        raise ValueError(f"there is an operator {stem} in {SCHEMA}")
    places = {name: Path(place.format(stem=stem, family=family)) for name, place in PLACES.items()}
    there = [str(place) for place in places.values() if (root / place).exists()]
    if there:
        raise ValueError(f"there is {', '.join(there)}")
    camel = "".join(part.capitalize() for part in stem.split("_"))
    for name, place in places.items():
        text = (TEMPLATES / name).read_text()
        (root / place).write_text(Template(text).substitute(stem=stem, camel=camel))
    table, end, rest = schema.partition("\n};\n")
    (root / SCHEMA).write_text(f"{table}\n{LINES.format(stem=stem).rstrip()}{end}{rest}")
    return [SCHEMA, *places.values()]


def main(arguments: Sequence[str]) -> int:
    """Writes the files and prints what comes next."""
    parser = argparse.ArgumentParser(prog="nox -s new --", description=__doc__.splitlines()[0])
    parser.add_argument("stem", help="the operator's name, squared_relu for example")
    parser.add_argument("--family", required=True, help=", ".join(families(ROOT)))
    options = parser.parse_args(arguments)
    try:
        written = write(ROOT, options.stem, options.family)
    except ValueError as error:
        parser.error(str(error))
    for path in written:
        print(f"{'changed' if path == SCHEMA else 'written'}  {path}")
    print(
        f"\nThey compute x * x. Put the formula where the comments say so, then run\n\n"
        f"    python3 noxfile.py -s quick -- {options.stem}\n\n"
        "CONTRIBUTING.md, 'How to add an operator', has all steps."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
