"""CUDA kernels of fusewheel. This package only says where; `import fusewheel` loads them."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import torch

_HERE = Path(__file__).parent
# The oldest driver that runs what a CUDA major version builds.
_DRIVERS = {12: "525", 13: "580"}

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
    return None


def _driver_version() -> int | None:
    """The newest CUDA the driver supports, 13000 for 13.0; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return version.value if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else None
