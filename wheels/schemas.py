"""Keeps the operator schemas of every release, and finds what would break saved programs.

A saved TorchScript or AOTInductor program names an operator and passes what its schema asked for
when the program was saved. Hence a later schema may have new arguments at the end, if they have
defaults, and is otherwise the same; a change beyond that gets a new operator name.

    python wheels/schemas.py    records the schemas of this version, before it is released
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "packages" / "schema" / "src" / "schema.cpp"
RELEASES = ROOT / "packages" / "schema" / "releases"


def defined() -> list[str]:
    """The schema lines of the source, sorted."""
    table = re.search(r"kSchemas\[\] = \{(.*?)\};", SOURCE.read_text(), re.DOTALL)
    assert table is not None
    entries = re.findall(r'(?:"[^"]*"\s*)+', table.group(1))
    return sorted("".join(re.findall(r'"([^"]*)"', entry)) for entry in entries)


def recorded() -> dict[str, list[str]]:
    """The schema lines of every recorded release, by version."""
    return {path.stem: path.read_text().splitlines() for path in sorted(RELEASES.glob("*.txt"))}


def broken(old: list[str], new: list[str]) -> Iterator[str]:
    """Why programs saved with the `old` schemas would not run with the `new` ones."""
    from torch._C import parse_schema

    current = {schema.name: schema for schema in map(parse_schema, new)}
    for line in old:
        schema = parse_schema(line)
        reason = _breaks(schema, current)
        if reason is not None:
            yield f"{schema.name}: {reason} (was: {line})"


def _breaks(old: torch.FunctionSchema, current: Mapping[str, torch.FunctionSchema]) -> str | None:
    new = current.get(old.name)
    if new is None:
        return "the operator is gone"
    for position, was in enumerate(old.arguments):
        if position >= len(new.arguments):
            return f"the argument '{was.name}' is gone"
        now = new.arguments[position]
        if now.name != was.name:
            return f"argument {position} was '{was.name}' and is '{now.name}'"
        if _kind(now) != _kind(was):
            return f"'{was.name}' was {_kind(was)} and is {_kind(now)}"
        if was.has_default_value() and (
            not now.has_default_value() or now.default_value != was.default_value
        ):
            return f"the default of '{was.name}' changed"
    for added in new.arguments[len(old.arguments) :]:
        if not added.has_default_value():
            return f"the new argument '{added.name}' has no default"
    if [_kind(value) for value in new.returns] != [_kind(value) for value in old.returns]:
        return "it returns something else"
    return None


def _kind(argument: torch.Argument) -> str:
    mutated = argument.alias_info is not None and argument.alias_info.is_write
    return f"{getattr(argument, 'real_type', argument.type)}{' (mutated)' if mutated else ''}"


def main() -> None:
    """Writes the record of this version; one that was released must stay as it is."""
    text = (ROOT / "python" / "fusewheel" / "_core" / "version.py").read_text()
    version = re.search(r'__version__ = "(.+)"', text)
    assert version is not None
    RELEASES.mkdir(exist_ok=True)
    (RELEASES / f"{version.group(1)}.txt").write_text("".join(f"{line}\n" for line in defined()))


if __name__ == "__main__":
    main()
