"""The kernel libraries in one process: alone, together, twice, in any order."""

from __future__ import annotations

import itertools

import fusewheel_cpu
import fusewheel_cuda
import pytest

CPU, CUDA = str(fusewheel_cpu.library), str(fusewheel_cuda.library)
USE = """
a = torch.arange(4.0)
assert torch.equal(torch.ops.fusewheel.muladd(a, a, 1.0), a * a + 1)
print("works")
"""


def load(*libraries: str) -> str:
    return "import torch\n" + "".join(
        f"torch.ops.load_library({library!r})\n" for library in libraries
    )


def has_cuda_kernel() -> str:
    return 'assert torch._C._dispatch_has_kernel_for_dispatch_key("fusewheel::muladd", "CUDA")\n'


@pytest.mark.parametrize("libraries", [(CPU,), (CPU, CPU), (CPU, CUDA), (CUDA, CPU)])
def test_any_order_and_repetition(run, libraries):
    done = run(load(*libraries) + USE)
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr


def test_the_cuda_library_alone_registers_its_kernels_in_a_cpu_only_torch(run):
    done = run(load(CUDA) + has_cuda_kernel() + "print('works')")
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr


def test_only_one_schema_library_is_mapped(run):
    done = run(
        load(CPU, CUDA)
        + "maps = {l.split()[-1] for l in open('/proc/self/maps') if 'fusewheel_schema' in l}\n"
        + "print(len(maps))"
    )
    assert done.stdout == "1\n", done.stdout + done.stderr


@pytest.mark.parametrize("package", ["fusewheel_cpu", "fusewheel_cuda"])
def test_a_second_copy_of_the_schema_by_path_is_harmless(run, copied, package):
    copy = copied(package) / "libfusewheel_schema.so"
    first, second = CPU, str(copy)
    for libraries in itertools.permutations((first, second)):
        done = run(load(*libraries) + USE)
        assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr


def test_both_packages_load_through_the_front_in_either_import_order(run):
    for order in itertools.permutations(("fusewheel_cpu", "fusewheel_cuda", "fusewheel")):
        imports = "import torch\n" + "".join(f"import {name}\n" for name in order)
        done = run(imports + USE)
        assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr


def test_library_before_torch_is_an_error_and_no_crash(run_python):
    done = run_python(f"import ctypes\nctypes.CDLL({CPU!r})")
    assert done.returncode == 1 and "libtorch_cpu.so" in done.stderr


def test_every_instruction_set_level_converts_exactly(run):
    """Operators are compared with eager at each level by `nox -s tests`."""
    text = """
import fusewheel, fusewheel_cpu, torch
bits = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
for dtype in (torch.bfloat16, torch.float16):
    x = bits.view(dtype)
    y = fusewheel.mul(x, torch.ones((), dtype=dtype))
    assert torch.equal(y.isnan(), x.isnan())
    assert torch.equal(y[~x.isnan()], x[~x.isnan()])
wide = torch.randn(100000) * torch.logspace(-12, 7, 100000)
for dtype in (torch.bfloat16, torch.float16):
    pair = wide.to(dtype)
    assert torch.equal(fusewheel.mul(pair, pair), (pair.float() * pair.float()).to(dtype))
print(fusewheel_cpu.choices()["FUSEWHEEL_CPU_ISA"])
"""
    level_in_force = text.splitlines()[-1]
    best = run(f"import fusewheel_cpu\n{level_in_force}").stdout.strip()
    for level in ("baseline", "v3"):
        asked = f"import os\nos.environ['FUSEWHEEL_CPU_ISA'] = {level!r}\n"
        done = run(asked + text)
        assert done.returncode == 0, done.stderr
        # A processor may have less than what is asked for: "baseline" < "v3" < "v4".
        assert done.stdout.strip() == min(level, best)
