"""CUDA kernels of fusewheel. This package only says where; `import fusewheel` loads them."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import torch

_HERE = Path(__file__).parent
# The oldest driver that runs what a CUDA major version builds.
_DRIVERS = {12: "525", 13: "580"}
Capability = tuple[int, int]

library = _HERE / "libfusewheel_cuda.so"
facts: dict[str, str] = json.loads((_HERE / "build.json").read_text())
_emulated = facts["cuda"] == "emulated"  # a test build: the CUDA kernels on CPU tensors
device = "cpu" if _emulated else "cuda"


def unavailable() -> Exception | None:
    """Why these kernels cannot run here, found out without loading them."""
    from fusewheel.errors import BackendUnavailableError, DriverTooOldError

    if _emulated:
        return None
    if torch.version.cuda is None:
        kind = "ROCm" if torch.version.hip else "CPU-only"
        return BackendUnavailableError(
            f"torch {torch.__version__} is a {kind} build; fusewheel-cuda needs a CUDA build of it"
        )
    driver = _driver_version()
    if driver is None:
        return BackendUnavailableError("no NVIDIA driver found")
    needed = int(facts["cuda"].partition(".")[0])
    if driver // 1000 < needed:
        return DriverTooOldError(
            f"the NVIDIA driver supports CUDA {driver // 1000}.{driver % 1000 // 10}, but "
            f"fusewheel-cuda was built with CUDA {facts['cuda']} and needs driver "
            f"{_DRIVERS[needed]} or newer"
        )
    found = _capabilities()
    if found and not any(_runs_on(capability) for capability in found):
        return BackendUnavailableError(
            "no GPU here can run fusewheel-cuda: it has code for compute capability "
            f"{_listed(_built('images'))} and for every one from {_listed([min(_built('ptx'))])} "
            f"on, found {_listed(found)}"
        )
    return None


def _built(kind: str) -> list[Capability]:
    """The compute capabilities of the machine code (`images`) or of the PTX in the library."""
    return [(int(text[:-1]), int(text[-1])) for text in facts[kind].split()]


def _runs_on(gpu: Capability) -> bool:
    """Whether the library has code for a GPU.

    Machine code runs on GPUs of the same major version that are not older, PTX on all not older.
    """
    images = any(gpu[0] == image[0] and gpu >= image for image in _built("images"))
    return images or any(gpu >= ptx for ptx in _built("ptx"))


def _listed(found: list[Capability]) -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in sorted(set(found)))


def _driver_version() -> int | None:
    """The newest CUDA the driver supports, 13000 for 13.0; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def _capabilities() -> list[Capability]:
    """The compute capability of every GPU in this machine; empty where that cannot be told.

    NVML is asked and not CUDA, which could no longer be used in a process forked from this one.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    count, major, minor = (ctypes.c_uint() for _ in range(3))
    gpu = ctypes.c_void_p()
    if nvml.nvmlInit_v2() != 0:
        return []
    try:
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        found = []
        for index in range(count.value):
            capability = (ctypes.byref(major), ctypes.byref(minor))
            if (
                nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu)) == 0
                and nvml.nvmlDeviceGetCudaComputeCapability(gpu, *capability) == 0
            ):
                found.append((major.value, minor.value))
        return found
    finally:
        nvml.nvmlShutdown()
