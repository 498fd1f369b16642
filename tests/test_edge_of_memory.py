"""Copies at the edge of memory hold the same, and a read behind one ends the process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from copies import run_beside_torch
from edge_of_memory import at_the_edge

READ = """
import ctypes, sys, torch
sys.path.insert(0, FOLDER)
from edge_of_memory import at_the_edge
found = at_the_edge(torch.ones(1025))
ctypes.string_at(found.data_ptr() + 4 * 1025 - 1, COUNT)
"""


@pytest.mark.parametrize("shape", [(3, 5), (), (4096,), (0, 2)])
def test_copies(shape: tuple[int, ...]):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = torch.arange(60).view(3, 20)[:, ::2].to(dtype) if shape == (3, 5) else torch.ones(shape)
        found = at_the_edge(x)
        assert torch.equal(found, x)
        assert (found.stride(), found.storage_offset()) == (x.stride(), x.storage_offset())


@pytest.mark.parametrize("count", [1, 2])
def test_a_read_behind(count: int, tmp_path: Path):
    program = READ.replace("FOLDER", repr(str(Path(__file__).parent))).replace("COUNT", str(count))
    done = run_beside_torch(program, tmp_path)
    assert done.returncode == (0 if count == 1 else -signal.SIGSEGV), done.stderr
