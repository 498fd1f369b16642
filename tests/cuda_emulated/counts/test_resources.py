"""Registers, and what follows from them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest
from cuda_emulated.counts.floors import FLOORS, HALF, Floor, shares, too_few
from cuda_emulated.counts.kernels import short
from cuda_emulated.counts.launches import Launch
from cuda_emulated.counts.resources import (
    PROCESSORS,
    ROOT,
    RUNS,
    compiled,
    compiler,
    launched,
    occupancy,
    parsed,
    stored,
)

BUILD = ROOT / "cuda_kernels" / "CMakeLists.txt"
AGAIN = "compile them again: python noxfile.py -s cuda_counts"


def test_every_kernel_of_the_cases_has_been_compiled_for_every_gpu():
    kernels = stored()
    assert {name: set(kernels.get(name, ())) for _, _, name in launched()} == {
        name: set(PROCESSORS) for _, _, name in launched()
    }, AGAIN


def test_gpus_are_compiled_for_as_the_wheel_has_code_for_them():
    listed = re.search(r"set\(FUSEWHEEL_CUDA_ARCHS ([\d ]+) CACHE", BUILD.read_text())
    assert listed is not None
    assert [gpu for gpu in PROCESSORS if gpu not in RUNS] == listed[1].split()
    for gpu, image in RUNS.items():
        assert int(gpu) // 10 == int(image) // 10 and int(gpu) > int(image)


def test_no_kernel_spills_registers_on_any_gpu():
    spilled = {
        name: by_capability
        for name, by_capability in stored().items()
        if any(spilled for _, spilled in by_capability.values())
    }
    assert spilled == {}


def test_every_kernel_leaves_room_for_as_many_warps_as_it_declares():
    found = {name: too_few(name, launch, stored()[name]) for _, launch, name in launched()}
    assert {name: below for name, below in found.items() if below} == {}


def test_a_declared_floor_is_what_the_kernel_has_and_less_than_others_need():
    least = {
        name: min(shares(launch, stored()[name]).values())
        for _, launch, name in launched()
        if name in FLOORS
    }
    assert {name: floor.share for name, floor in FLOORS.items()} == least
    assert all(floor.share < HALF for floor in FLOORS.values())


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "capability", "share"),
    [
        (512, 32, 0, "90", 1.0),
        (512, 64, 0, "90", 0.5),
        (512, 71, 0, "90", 0.25),
        (256, 40, 0, "90", 0.75),
        (128, 32, 0, "89", 1.0),
        (32, 16, 0, "89", 0.5),  # as many blocks as there can be
        (128, 32, 48 << 10, "80", 3 * 4 / 64),
        (512, 32, 0, "75", 1.0),
        (1024, 64, 200 << 10, "80", 0.5),  # as much as there is
    ],
)
def test_occupancy(threads, registers, shared, capability, share):
    launch = Launch("copies", 0, (1, 1, 1), (threads, 1, 1), shared, 0, 0, 0, ())
    assert occupancy(launch, registers, PROCESSORS[capability]) == share


PRINTED = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z6copiesPf' for 'sm_90'
ptxas info    : Function properties for _Z6copiesPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers
ptxas info    : Compiling entry function '_Z5tilesIfEvPT_' for 'sm_90'
ptxas info    : Function properties for _Z5tilesIfEvPT_
    624 bytes stack frame, 708 bytes spill stores, 712 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 624 bytes cumulative stack size
"""


def test_a_spill_is_found_in_what_ptxas_prints():
    assert dict(parsed(PRINTED)) == {"copies": [32, 0], "tiles<float>": [255, 708]}


SPILLS = """\
__global__ void __launch_bounds__(1024, 2) spills(const float* from, float* to) {
  float values[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) values[i] = from[threadIdx.x * 96 + i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) to[threadIdx.x * 96 + i] = values[i] * values[(i + 5) % 96];
}
"""


def test_a_planted_spill_is_found(tmp_path):
    source = tmp_path / "spills.cu"
    source.write_text(SPILLS)
    ((name, (_, spilled)),) = parsed(compiled(compiler(), source, "90"))
    assert name == "spills"
    assert spilled > 0


CROWDED = """\
__global__ void __launch_bounds__(512) sums(const float* from, float* to) {
  float values[80];
#pragma unroll
  for (int i = 0; i < 80; ++i) values[i] = from[threadIdx.x * 80 + i];
  __syncthreads();
#pragma unroll 1
  for (int round = 0; round < 4; ++round) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) values[i] *= values[(i + 5) % VALUES];
  }
#pragma unroll
  for (int i = 0; i < VALUES; ++i) to[threadIdx.x * 80 + i] = values[i];
}
"""


@pytest.mark.parametrize(("values", "is_too_few"), [(80, True), (8, False)])
def test_a_planted_kernel_that_leaves_room_for_too_few_warps_is_found(
    tmp_path: Path, values: int, is_too_few: bool
):
    source = tmp_path / "crowded.cu"
    source.write_text(CROWDED.replace("VALUES", str(values)))
    ((name, resources),) = parsed(compiled(compiler(), source, "90"))
    launch = Launch(name, 0, (1, 1, 1), (512, 1, 1), 0, 0, 0, 0, ())
    assert bool(too_few(name, launch, {"90": resources})) is is_too_few
    with patch.dict(FLOORS, {name: Floor(0.25, "the sums stay in registers")}):
        assert too_few(name, launch, {"90": resources}) == {}


def test_a_spill_stops_a_build_that_refuses_it(tmp_path):
    source = tmp_path / "spills.cu"
    source.write_text(SPILLS)
    command = [compiler(), "-arch=sm_90", "-cubin", "-Werror=all-warnings", str(source)]
    command += ["-o", str(tmp_path / "spills")]
    assert subprocess.run(command, check=False).returncode == 0
    refusing = [*command, "-Xptxas=--warn-on-spills"]
    done = subprocess.run(refusing, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Registers are spilled to local memory" in done.stderr


def test_both_compilers_names_become_one():
    host = "void fusewheel::(anonymous namespace)::rows<__half, 8, fusewheel::Kind>(long)"
    device = host.replace("(anonymous namespace)", "_GLOBAL__N__be5b1b98_4_x_cu_a4037561")
    assert short(host) == short(device) == "rows<__half, 8, Kind>"
    enumerator = "void fusewheel::(anonymous namespace)::g<float, (fusewheel::Gradient)1, 2>(int)"
    assert short(enumerator) == "g<float, 1, 2>"
