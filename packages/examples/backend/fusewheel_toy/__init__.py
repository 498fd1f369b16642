"""The device "toy" and its kernels of fusewheel, which `import fusewheel` loads."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import torch

from fusewheel_toy import runtime

_HERE = Path(__file__).parent

# What a package for a real device does when it is imported: it names PyTorch's spare device.
torch.ops.load_library(str(_HERE / "libtoy_device.so"))
torch.utils.rename_privateuse1_backend("toy")
torch._register_device_module("toy", runtime)

# What fusewheel asks for (docs/backends.md).
device = "toy"
library = _HERE / "libfusewheel_toy.so"
facts: dict[str, str] = json.loads((_HERE / "build.json").read_text())


def unavailable() -> Exception | None:
    """Why these kernels cannot run here: their memory is always there."""
    return None


def launches() -> int:
    """How many of the kernels have run in this process."""
    count = ctypes.CDLL(str(library)).fusewheel_toy_launches
    count.restype = ctypes.c_int64
    result: int = count()
    return result
