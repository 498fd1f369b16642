"""What fusewheel_cuda says about a machine, without its library."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fusewheel.errors import BackendUnavailableError, DriverTooOldError

SOURCE = Path(__file__).parents[2] / "packages/fusewheel-cuda/fusewheel_cuda/__init__.py"


def _plugin(folder: Path, cuda: str) -> ModuleType:
    """The module as it is installed, with the facts of a build for `cuda`."""
    shutil.copy(SOURCE, folder / "plugin.py")
    (folder / "build.json").write_text(json.dumps({"cuda": cuda}))
    spec = importlib.util.spec_from_file_location("plugin", folder / "plugin.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return _plugin(tmp_path, "13.0")


def test_names_its_device_and_library(plugin):
    assert (plugin.device, plugin.library.name) == ("cuda", "libfusewheel_cuda.so")


def test_torch_without_cuda(plugin, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    reason = plugin.unavailable()
    assert type(reason) is BackendUnavailableError
    assert f"torch {torch.__version__} is a CPU-only build" in str(reason)


def test_no_driver(plugin, monkeypatch):
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


def test_emulated_build_serves_the_cpu(tmp_path):
    plugin = _plugin(tmp_path, "emulated")
    assert plugin.device == "cpu"
    assert plugin.unavailable() is None
