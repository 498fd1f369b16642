"""Names of kernels: as the emulation's library and the CUDA compiler spell them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cache

import fusewheel_cuda


def short(demangled: str) -> str:
    """A kernel and its template arguments, without namespaces and parameters."""
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|fusewheel::", "", demangled)
    name = re.sub(r"\(\w+\)(?=\d)", "", name)  # the type of an enumerator
    return name.removeprefix("void ").partition("(")[0].strip()


def demangled(names: Sequence[str]) -> list[str]:
    """What `c++filt` makes of each name."""
    done = subprocess.run(
        ("c++filt",), input="\n".join(names), check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


@cache
def at(place: int) -> str:
    """The kernel that begins at a place of the emulation's library."""
    command = ("addr2line", "-f", "-C", "-e", str(fusewheel_cuda.library), hex(place))
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return short(done.stdout.partition("\n")[0])


@cache
def line_at(place: int) -> str:
    """The line of an instruction, and those that its functions were called from."""
    command = ("addr2line", "-i", "-e", str(fusewheel_cuda.library), hex(place - 1))
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [line.rpartition("/")[2] for line in done.stdout.split("\n") if line]
    return " < ".join(line.partition(" ")[0] for line in lines[:3])
