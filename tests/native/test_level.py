"""The kernels go the way that the environment asks for. Sessions that ask for one run this too."""

from __future__ import annotations

import os
from pathlib import Path

import fusewheel_cpu
from copies import run_beside_torch

from .choices import AMX, BF16, LEVEL, VNNI, made, without


def test_what_is_asked_for_is_in_force():
    asked = {name: os.environ[name] for name in fusewheel_cpu.choices() if name in os.environ}
    # A processor may have less than what is asked for; "baseline" < "v3" < "v4".
    for name, most in {LEVEL: "v4", VNNI: "1", AMX: "1", BF16: "1"}.items():
        if name in asked:
            asked[name] = min(asked[name], made(os.environ | {name: most})[name])
    in_force = fusewheel_cpu.choices()
    assert {name: in_force[name] for name in asked} == asked


def test_without_variables_the_processor_decides():
    automatic = made(without())
    assert set(automatic) == set(fusewheel_cpu.choices())
    assert made(without() | automatic) == automatic


# Each tensor has 60 bytes: what is written behind them is in no other piece of memory. With one of
# 256 addresses the mark happens to be the byte that is written, and nothing is found. So there are
# eight tensors.
OVERRUN = """
import ctypes, torch
tensors = [torch.zeros(15) for _ in range(8)]
for tensor in tensors:
    ctypes.memset(tensor.data_ptr() + 60, 255, 4)
del tensor, tensors
"""


def test_a_write_behind_a_tensor_ends_the_process_where_marks_are_asked_for(tmp_path: Path):
    marks = "glibc.malloc.check" in os.environ.get("GLIBC_TUNABLES", "")
    asked = marks or "address" in os.environ.get("FUSEWHEEL_SANITIZE", "")  # it watches each write
    child = run_beside_torch(OVERRUN, tmp_path)
    assert (child.returncode != 0) == asked, child.stderr
