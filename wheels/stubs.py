"""Writes the type stub of `fusewheel.ops.public`, which is filled when it is imported.

Type checkers do not run code, so the wheel carries the list of public functions written out.
"""

from __future__ import annotations

import ast
from pathlib import Path

OPS = Path(__file__).parents[1] / "python" / "fusewheel" / "ops"
STUB = OPS / "public.pyi"


def stub() -> str:
    """The stub's text: one import for each public function of a module."""
    found: dict[str, str] = {}
    for path in sorted(OPS.glob("*/[a-z]*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.keyword(arg="function", value=ast.Name(id=name)):
                    names = [name]
                case ast.Assign(targets=[ast.Name(id="FUNCTIONS")], value=ast.Tuple(elts=elements)):
                    names = [ast.unparse(element) for element in elements]
                case _:
                    continue
            found |= dict.fromkeys(names, f"fusewheel.ops.{path.parent.name}.{path.stem}")
    lines = [f"from {module} import {name} as {name}" for name, module in sorted(found.items())]
    return "\n".join([*lines, "", f"__all__ = {sorted(found)!r}", ""])


if __name__ == "__main__":
    STUB.write_text(stub())
