"""Which NVIDIA GPUs this machine has, asked of the driver: neither torch nor CUDA is needed."""

from __future__ import annotations

import ctypes
from typing import Any

# Of CUdevice_attribute in cuda.h.
MAJOR, MINOR = 75, 76


class NoGpuError(RuntimeError):
    """There is no GPU that CUDA programs can use; the message says why."""


def gpus() -> list[str]:
    """The compute capability of each GPU, "90" for 9.0.

    Raises:
        NoGpuError: if there is no driver, or no GPU that it can use.
    """
    try:
        driver: Any = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NoGpuError("no NVIDIA driver was found (libcuda.so.1)") from None
    count = ctypes.c_int()
    if code := driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        raise NoGpuError(f"the NVIDIA driver cannot start: error {code} of cuda.h")
    if count.value == 0:
        raise NoGpuError("the NVIDIA driver knows no GPU")
    return [_capability(driver, device) for device in range(count.value)]


def _capability(driver: Any, device: int) -> str:
    numbers = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        if code := driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            raise NoGpuError(f"GPU {device} does not answer: error {code} of cuda.h")
        numbers.append(str(value.value))
    return "".join(numbers)
