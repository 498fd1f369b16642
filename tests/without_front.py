"""Runs Python that knows torch and the kernel library, and nothing of fusewheel's front."""

from __future__ import annotations

import tempfile
from pathlib import Path

import fusewheel
from copies import run_beside_torch

_PRELUDE = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
torch.ops.load_library({library!r})
{code}
assert not any(name.partition(".")[0].startswith("fusewheel") for name in sys.modules)
"""


def cpu_library() -> Path:
    """The library with the kernels for CPU tensors."""
    (library,) = (b.library for b in fusewheel.backends() if b.device == "cpu" and b.loaded)
    return library


def run_without_front(code: str) -> None:
    """Run code in another process, in which `torch` is imported and the library loaded."""
    script = _PRELUDE.format(library=str(cpu_library()), code=code)
    with tempfile.TemporaryDirectory() as folder:
        done = run_beside_torch(script, Path(folder))
    assert done.returncode == 0, done.stderr
