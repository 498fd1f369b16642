"""Tensors are carried from one place of the CPU's memory to another; without a GPU all says so."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from on_gpu import bench, plugin
from on_gpu.carried import Carrier, back, carried
from on_gpu.required import reason

ROOT = Path(__file__).parents[2]


def test_a_part_of_memory_keeps_its_place_and_its_strides():
    base = torch.arange(24.0).reshape(4, 6)
    view = base[1:, ::2]
    found = Carrier("cpu").there(view)
    assert torch.equal(found, view)
    assert (found.storage_offset(), found.stride()) == (view.storage_offset(), view.stride())
    assert found.data_ptr() != view.data_ptr()


def test_shared_memory_is_shared_there_too():
    base = torch.zeros(8)
    carrier = Carrier("cpu")
    first, second = carrier.there([base[:4], base[2:]])
    first.fill_(1)
    assert second.tolist() == [1, 1, 0, 0, 0, 0]
    assert base.sum() == 0
    carrier.write_back()
    assert base.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_what_is_written_comes_back_if_the_operator_writes():
    x = torch.zeros(3)
    assert carried(lambda t: t.add_(1), "cpu", writes=False)(x).tolist() == [1, 1, 1]
    assert x.sum() == 0
    carried(lambda t: t.add_(1), "cpu", writes=True)(x)
    assert x.tolist() == [1, 1, 1]


def test_other_arguments_stay_as_they_are():
    other = torch.empty(2, device="meta")
    assert Carrier("cpu").there(other) is other
    assert Carrier("cpu").there(1.5) == 1.5
    assert back((None, torch.ones(2, 3).T))[1].stride() == (1, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_tests_and_the_benchmark_say_so(monkeypatch):
    message = re.escape(f"the CUDA kernels need an NVIDIA GPU: {reason()}")
    monkeypatch.setattr(sys, "argv", ["bench"])
    for program in (lambda: plugin.pytest_configure(None), bench.main):
        with pytest.raises(SystemExit, match=message):
            program()


def _gpus() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpus", ROOT / "wheels" / "gpus.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Driver:
    """A driver with these GPUs; `error` is what it answers first."""

    def __init__(self, *capabilities: tuple[int, int], error: int = 0) -> None:
        self._capabilities = capabilities
        self._error = error

    def cuInit(self, flags: int) -> int:
        return self._error

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self._capabilities)
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int:
        value._obj.value = self._capabilities[device][attribute - 75]
        return 0


def test_gpus_are_found_by_the_driver(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver((9, 0), (12, 0)))
    assert _gpus().gpus() == ["90", "120"]


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (None, "no NVIDIA driver was found"),
        (Driver(error=100), "cannot start: error 100"),
        (Driver(), "knows no GPU"),
    ],
)
def test_a_machine_without_gpus_says_why(monkeypatch, driver, message):
    def load(name: str) -> Driver:
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    module = _gpus()
    with pytest.raises(module.NoGpuError, match=message):
        module.gpus()
