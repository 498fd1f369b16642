"""Ranges that a profiler shows, seen by a library that NVTX takes for a profiler."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def headers() -> Path:
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations or [] if spec is not None else []
    found = [folder for name in folders for folder in Path(name).glob("cu*/include/nvtx3")]
    assert found, "the kernels are built with nvidia-nvtx: packages/fusewheel-cuda/pyproject.toml"
    return found[0].parent


@pytest.fixture(scope="module")
def profiler(headers, tmp_path_factory) -> Path:
    library = tmp_path_factory.mktemp("profiler") / "libprofiler.so"
    command = ["cc", "-shared", "-fPIC", "-isystem", str(headers), str(HERE / "profiler.c")]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library


def run(command: list[str], profiler: Path, **environment: str) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name != "FUSEWHEEL_NVTX"}
    env |= {"NVTX_INJECTION64_PATH": str(profiler), **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_there_are_ranges_if_the_environment_asks_for_them(headers, profiler, tmp_path):
    program = str(tmp_path / "ranges")
    command = ["g++", "-std=c++17", f"-I{ROOT / 'cuda_kernels'}", "-isystem", str(headers)]
    subprocess.run([*command, str(HERE / "ranges.cpp"), "-o", program, "-ldl"], check=True)
    assert run([program], profiler) == ["within"]
    assert run([program], profiler, FUSEWHEEL_NVTX="0") == ["within"]
    shown = ["begin fusewheel::rms_norm", "within", "end"]
    assert run([program], profiler, FUSEWHEEL_NVTX="1") == shown
    refused = ["FUSEWHEEL_NVTX must be 0 or 1, got 'yes'"]
    assert run([program], profiler, FUSEWHEEL_NVTX="yes") == refused


def test_an_operator_has_a_range(profiler):
    text = "import fusewheel, torch; x = torch.ones(2); print(fusewheel.mul(x, x).tolist())"
    shown = run([sys.executable, "-c", text], profiler, FUSEWHEEL_NVTX="1")
    assert shown == ["begin fusewheel::mul", "end", "[1.0, 1.0]"]
