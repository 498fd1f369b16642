"""Writes the type stub of `fusewheel.ops`, whose modules are found when it is imported.

Type checkers do not run code, so the wheel carries the list of public functions written out.
"""

from __future__ import annotations

import ast
from pathlib import Path

OPS = Path(__file__).parents[1] / "python" / "fusewheel" / "ops"


def stub() -> str:
    """The stub's text: one import per public function that an operator is declared with."""
    lines: list[str] = []
    names: list[str] = []
    for path in sorted(OPS.glob("[a-z]*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.keyword(arg="function", value=ast.Name(id=name)):
                    names.append(name)
                    lines.append(f"from fusewheel.ops.{path.stem} import {name} as {name}")
    return "\n".join(
        [
            "from fusewheel._operator import Operator",
            *lines,
            "",
            f"__all__ = {names!r}",
            "",
            "def operators() -> tuple[Operator, ...]: ...",
            "",
        ]
    )


if __name__ == "__main__":
    (OPS / "__init__.pyi").write_text(stub())
