"""Copies at the edge of memory hold the same, and a read behind one ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from edge_of_memory import at_the_edge

READ = """
import ctypes, sys, torch
from edge_of_memory import at_the_edge
found = at_the_edge(torch.ones(1025))
ctypes.string_at(found.data_ptr() + 4 * 1025 - 1, int(sys.argv[1]))
"""


@pytest.mark.parametrize("shape", [(3, 5), (), (4096,), (0, 2)])
def test_copies(shape: tuple[int, ...]):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = torch.arange(60).view(3, 20)[:, ::2].to(dtype) if shape == (3, 5) else torch.ones(shape)
        found = at_the_edge(x)
        assert torch.equal(found, x)
        assert (found.stride(), found.storage_offset()) == (x.stride(), x.storage_offset())


@pytest.mark.parametrize("count", [1, 2])
def test_a_read_behind(count: int):
    command = (sys.executable, "-c", READ, str(count))
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, check=False)
    assert done.returncode == (0 if count == 1 else -signal.SIGSEGV), done.stderr.decode()
