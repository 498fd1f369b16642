"""Resident memory in a process of its own, where nothing else allocates."""

import json
import sys

import pytest
from copies import run_beside_torch

PROGRAM = """
import ctypes, gc, json, os, torch, fusewheel

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def peak():
    with open("/proc/self/status") as status:
        return next(int(l.split()[1]) * 1024 for l in status if l.startswith("VmHWM"))

def layers(count):
    return torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(count)))

# Whatever is allocated once, on first use.
fusewheel.quantize_(layers(1), KIND)
empty = resident()
model = layers(12)
full, top = resident(), peak()
report = fusewheel.quantize_(model, KIND)
print(json.dumps({
    "before": full - empty, "after": resident() - empty, "growth": peak() - max(top, full),
    "said_before": report.bytes_before, "said_after": report.bytes_after,
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
@pytest.mark.parametrize(("kind", "bits"), [("int4", 5), ("int8", 8.5)])
def test_resident_memory_falls_to_that_of_the_codes(kind, bits, tmp_path):
    done = run_beside_torch(PROGRAM.replace("KIND", repr(kind)), tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    weights = 12 * 2048 * 2048
    assert found["said_before"] == 4 * weights
    assert found["said_after"] == bits / 8 * weights
    # A few MiB are the allocator's.
    slack = 16 * 2**20
    assert abs(found["before"] - found["said_before"]) < slack
    assert abs(found["after"] - found["said_after"]) < slack
    # Layer by layer: never more than a layer's codes and the temporaries of a chunk on top.
    assert found["growth"] < slack + bits / 8 * 2048 * 2048
