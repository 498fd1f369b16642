"""Writes the type stub of `fusewheel.ops`, whose modules are found when it is imported.

Type checkers do not run code, so the wheel carries the list of public functions written out.
"""

from __future__ import annotations

import ast
from pathlib import Path

OPS = Path(__file__).parents[1] / "python" / "fusewheel" / "ops"


def stub() -> str:
    """The stub's text: one import per module that defines a function of its own name."""
    names = [
        path.stem
        for path in sorted(OPS.glob("[a-z]*.py"))
        if any(
            isinstance(node, ast.FunctionDef) and node.name == path.stem
            for node in ast.parse(path.read_text()).body
        )
    ]
    lines = [f"from fusewheel.ops.{name} import {name} as {name}" for name in names]
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
