"""Compares the wheels of two folders byte by byte, and says in which of their files they differ.

python wheels/compare.py FOLDER OTHER
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path


def differences(wheel: Path, other: Path) -> Iterator[str]:
    """What makes two wheels of one name different; nothing, if their bytes are the same."""
    if wheel.read_bytes() == other.read_bytes():
        return
    archives = zipfile.ZipFile(wheel), zipfile.ZipFile(other)
    names, others = (archive.namelist() for archive in archives)
    if set(names) != set(others):
        yield f"only in one of them: {sorted(set(names) ^ set(others))}"
    elif names != others:
        yield "their files are in another order"
    for name in sorted(set(names) & set(others)):
        first, second = (archive.getinfo(name) for archive in archives)
        if first.CRC != second.CRC:
            yield f"{name} has other contents"
        if first.date_time != second.date_time:
            yield f"{name} is of another time: {first.date_time}, {second.date_time}"
        if first.external_attr != second.external_attr:
            yield f"{name} has another mode: {first.external_attr:#x}, {second.external_attr:#x}"


def main(arguments: Sequence[str]) -> int:
    """Prints every wheel's hash and what differs; returns 1 if anything does."""
    folder, other = map(Path, arguments)
    wheels = sorted(path.name for path in folder.glob("*.whl"))
    bad = not wheels or wheels != sorted(path.name for path in other.glob("*.whl"))
    if bad:
        print(f"not the same wheels: {folder} holds {wheels}")
        return 1
    for name in wheels:
        found = list(differences(folder / name, other / name))
        bad = bad or (folder / name).read_bytes() != (other / name).read_bytes()
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        print(f"{digest}  {name}: {'differs' if found else 'the same'}")
        for finding in found:
            print(f"  {finding}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
