"""Memory of a mapped file is given back, and its numbers stay."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from fusewheel._core.mapped import MappedFiles

COUNT = 1 << 20


def resident(path: Path) -> int:
    """How many bytes of a mapped file are in memory."""
    text = Path("/proc/self/smaps").read_text()
    found = re.search(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", text)
    assert found
    return 1024 * int(found[1])


def cached(mapped: torch.Tensor) -> int:
    """How many pages of a mapped file the system has, whether or not this process has them too."""
    pages = (ctypes.c_ubyte * (mapped.nbytes // mmap.PAGESIZE))()
    look = ctypes.CDLL(None).mincore
    look.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    assert look(mapped.data_ptr(), mapped.nbytes, pages) == 0
    return sum(page & 1 for page in pages)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.write(torch.arange(COUNT, dtype=torch.int32).numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())
    return path


@pytest.mark.skipif(
    sys.platform != "linux", reason="only on Linux is the memory of a mapped file given back"
)
@pytest.mark.parametrize("told", [True, False])
def test_what_was_written_to_stays(path: Path, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not told:  # what was written to
        monkeypatch.setattr("fusewheel._core.mapped._PAGES", path.with_name("none"))
    mapped = torch.from_file(str(path), shared=False, size=COUNT, dtype=torch.int32)
    mapped[5] = -1
    assert mapped.sum() == COUNT * (COUNT - 1) // 2 - 6
    before = resident(path)
    assert before == 4 * COUNT
    MappedFiles().leave(mapped.data_ptr(), mapped.nbytes)
    assert resident(path) < before
    assert mapped[5] == -1
    assert mapped.sum() == COUNT * (COUNT - 1) // 2 - 6


@pytest.mark.skipif(
    sys.platform != "linux", reason="only on Linux is the memory of a mapped file given back"
)
def test_the_system_keeps_a_file_that_nobody_wrote_to(path: Path) -> None:
    """The next process need not wait for the disk."""
    mapped = torch.from_file(str(path), shared=False, size=COUNT, dtype=torch.int32)
    assert mapped.sum() == COUNT * (COUNT - 1) // 2
    MappedFiles().leave(mapped.data_ptr(), mapped.nbytes)
    assert resident(path) == 0
    assert cached(mapped) == mapped.nbytes // mmap.PAGESIZE
    assert mapped.sum() == COUNT * (COUNT - 1) // 2


def test_other_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", None)
    own = torch.zeros(COUNT)
    MappedFiles().leave(own.data_ptr(), own.nbytes)
