"""Memory of a mapped file is given back, and its numbers stay."""

from __future__ import annotations

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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it does nothing")
def test_leaves_what_was_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.write(torch.arange(COUNT, dtype=torch.int32).numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())
    mapped = torch.from_file(str(path), shared=False, size=COUNT, dtype=torch.int32)
    mapped[5] = -1
    assert mapped.sum() == COUNT * (COUNT - 1) // 2 - 6
    before = resident(path)
    assert before == 4 * COUNT
    MappedFiles().leave(mapped.data_ptr(), mapped.nbytes)
    assert resident(path) < before
    assert mapped[5] == -1
    assert mapped.sum() == COUNT * (COUNT - 1) // 2 - 6


def test_other_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", None)
    own = torch.zeros(COUNT)
    MappedFiles().leave(own.data_ptr(), own.nbytes)
