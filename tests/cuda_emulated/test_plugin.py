"""What fusewheel_cuda says about a machine, without its library."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fusewheel.errors import BackendUnavailableError, DriverTooOldError

SOURCE = Path(__file__).parents[2] / "packages/fusewheel-cuda/fusewheel_cuda/__init__.py"


def _plugin(folder: Path, cuda: str, **code: str) -> ModuleType:
    """The module as it is installed, with the facts of a build for `cuda`."""
    shutil.copy(SOURCE, folder / "plugin.py")
    (folder / "build.json").write_text(json.dumps({"cuda": cuda, **code}))
    spec = importlib.util.spec_from_file_location("plugin", folder / "plugin.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    plugin = _plugin(tmp_path, "13.0", images="75 80 86 100", ptx="75 120")
    monkeypatch.setattr(plugin, "_driver_version", lambda: 13000)
    monkeypatch.setattr(plugin, "_capabilities", lambda: [(8, 0)])
    return plugin


def test_names_its_device_and_library(plugin):
    assert (plugin.device, plugin.library.name) == ("cuda", "libfusewheel_cuda.so")


def test_torch_without_cuda(plugin, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    reason = plugin.unavailable()
    assert type(reason) is BackendUnavailableError
    assert f"torch {torch.__version__} is a CPU-only build" in str(reason)


def test_no_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    plugin = _plugin(tmp_path, "13.0")

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(plugin.ctypes, "CDLL", missing)
    reason = plugin.unavailable()
    assert type(reason) is BackendUnavailableError
    assert str(reason) == "no NVIDIA driver found"


def test_driver_too_old(plugin, monkeypatch):
    monkeypatch.setattr(plugin, "_driver_version", lambda: 12080)
    reason = plugin.unavailable()
    assert type(reason) is DriverTooOldError
    assert "supports CUDA 12.8" in str(reason)
    assert "built with CUDA 13.0 and needs driver 580 or newer" in str(reason)


@pytest.mark.parametrize("driver", [13000, 13020, 14000])
def test_driver_new_enough(plugin, monkeypatch, driver):
    monkeypatch.setattr(plugin, "_driver_version", lambda: driver)
    assert plugin.unavailable() is None


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([(7, 0)], "found 7.0"),
        ([(6, 1), (5, 2), (6, 1)], "found 5.2, 6.1"),
    ],
)
def test_no_gpu_with_code_for_it(plugin, monkeypatch, found, message):
    monkeypatch.setattr(plugin, "_capabilities", lambda: found)
    reason = plugin.unavailable()
    assert type(reason) is BackendUnavailableError
    assert "has code for compute capability 7.5, 8.0, 8.6, 10.0 and for every one from 7.5" in str(
        reason
    )
    assert str(reason).endswith(message)


@pytest.mark.parametrize(
    "found",
    [
        [(7, 5)],
        [(11, 0)],  # PTX
        [(13, 2)],
        [(7, 0), (8, 9)],  # of two GPUs one can
        [],  # NVML is not there: a call will tell
    ],
)
def test_a_gpu_with_code_for_it(plugin, monkeypatch, found):
    monkeypatch.setattr(plugin, "_capabilities", lambda: found)
    assert plugin.unavailable() is None


def test_machine_code_runs_on_its_major_version_only(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    plugin = _plugin(tmp_path, "13.0", images="80 86 90", ptx="120")
    runs = {c: plugin._runs_on(c) for c in [(7, 5), (8, 0), (8, 7), (9, 0), (10, 0), (12, 1)]}
    assert [c for c, served in runs.items() if served] == [(8, 0), (8, 7), (9, 0), (12, 1)]


def test_capabilities_come_from_nvml(tmp_path, monkeypatch):
    plugin = _plugin(tmp_path, "13.0")
    gpus = [(8, 6), (12, 0)]

    class Nvml:
        closed = False

        def nvmlInit_v2(self) -> int:
            return 0

        def nvmlShutdown(self) -> None:
            self.closed = True

        def nvmlDeviceGetCount_v2(self, count: Any) -> int:
            count._obj.value = len(gpus) + 1
            return 0

        def nvmlDeviceGetHandleByIndex_v2(self, index: int, gpu: Any) -> int:
            gpu._obj.value = index
            return 0 if index < len(gpus) else 15  # the last one is lost

        def nvmlDeviceGetCudaComputeCapability(self, gpu: Any, major: Any, minor: Any) -> int:
            major._obj.value, minor._obj.value = gpus[gpu.value or 0]
            return 0

    nvml = Nvml()
    monkeypatch.setattr(plugin.ctypes, "CDLL", lambda name: nvml)
    assert plugin._capabilities() == gpus
    assert nvml.closed


def test_emulated_build_serves_the_cpu(tmp_path):
    plugin = _plugin(tmp_path, "emulated")
    assert plugin.device == "cpu"
    assert plugin.unavailable() is None
