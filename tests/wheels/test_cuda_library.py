"""The CUDA library as it ships: it may be inspected and loaded without a GPU, not more."""

from __future__ import annotations

import re
import subprocess
import sys

import fusewheel
import fusewheel_cuda

LIBRARY = fusewheel_cuda.library


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_only_stable_symbols_of_torch():
    lines = _output("nm", "-D", "--undefined-only", str(LIBRARY)).splitlines()
    symbols = [line.split()[-1] for line in lines]
    assert [s for s in symbols if re.match(r"_ZNK?(3c10|2at|5torch)|_?Py|cu[A-Z]|cuda", s)] == []
    torch_symbols = [s for s in symbols if "torch" in s]
    assert torch_symbols
    assert all(s.startswith(("aoti_torch_", "torch_")) for s in torch_symbols)


def test_the_symbol_only_cuda_has_is_weak():
    lines = _output("nm", "-D", "--undefined-only", str(LIBRARY)).splitlines()
    weak = [line.split()[-1] for line in lines if line.split()[0] == "w"]
    assert "aoti_torch_get_current_cuda_stream" in weak


def test_exports_its_own_symbols_only():
    lines = _output("nm", "-D", "--defined-only", str(LIBRARY)).splitlines()
    symbols = {line.split()[-1] for line in lines}
    assert symbols == {"fusewheel_cuda_driver_version", "fusewheel_signatures"}


def test_needs_torch_and_the_schema_but_no_cuda():
    needed = re.findall(r"NEEDED.*\[(.+)\]", _output("readelf", "-d", str(LIBRARY)))
    assert {"libtorch.so", "libfusewheel_schema.so"} <= set(needed)
    assert not [name for name in needed if "cuda" in name]


LOAD = """
import ctypes, sys, torch
torch.ops.load_library(sys.argv[1])
has = torch._C._dispatch_has_kernel_for_dispatch_key
assert all(has(f"fusewheel::{name}", "CUDA") for name in sys.argv[2:])
library = ctypes.CDLL(sys.argv[1])
assert library.fusewheel_cuda_driver_version() >= 0
x = torch.ones(3)
try:
    torch.ops.fusewheel.mul(x, x)
except NotImplementedError:  # a CPU tensor and CUDA kernels only
    print("loaded")
"""


def test_loads_without_a_gpu():
    operators = {operator.name for operator in fusewheel.ops.operators()}
    assert _output(sys.executable, "-c", LOAD, str(LIBRARY), *operators) == "loaded\n"
