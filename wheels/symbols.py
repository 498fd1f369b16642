"""What the symbol tables of a wheel's libraries say: what they need, and from how new a system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

# C++ names of torch and c10 (mangled), and anything of Python's.
FORBIDDEN_SYMBOL = re.compile(r"^(_ZN?K?(2at|3c10|5torch)|_?Py)")
EXPORTED_SYMBOL = re.compile(r"^fusewheel_")
# What manylinux allows, and what torch or the wheel itself brings.
NEEDED = re.compile(
    r"^(ld-linux-[\w-]+|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|torch|torch_cpu|fusewheel_schema))\.so"
)


def symbol_findings(library: Path) -> Iterator[str]:
    """Names that a library must not use, or not show."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        for symbol in table.iter_symbols():
            defined = symbol["st_shndx"] != "SHN_UNDEF"
            if FORBIDDEN_SYMBOL.match(symbol.name):
                yield f"{library.name} has the symbol {symbol.name}"
            elif defined and symbol.name and not EXPORTED_SYMBOL.match(symbol.name):
                yield f"{library.name} exports {symbol.name}"


def needed(library: Path) -> list[str]:
    """The libraries that it asks the system for."""
    with library.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        return [tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]


def glibc(library: Path) -> tuple[int, int]:
    """The oldest glibc that has all it needs: (2, 24) for example."""
    versions = [(2, 0)]
    with library.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _library, auxiliary in section.iter_versions():
                    for version in auxiliary:
                        found = re.match(r"GLIBC_(\d+)\.(\d+)", version.name)
                        if found:
                            versions.append((int(found[1]), int(found[2])))
    return max(versions)
