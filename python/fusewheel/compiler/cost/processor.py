"""What cost rules ask about the processor and about PyTorch's libraries for it."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch


def facts() -> tuple[str, str, bool]:
    """All facts of this module: vector instructions, maker, whether there is MKL."""
    return torch.backends.cpu.get_cpu_capability(), maker(), has_mkl()


def has_avx512() -> bool:
    """Whether PyTorch uses AVX-512, or better than the lowest level on other architectures."""
    return torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "NO AVX", "AVX2")


def has_mkl() -> bool:
    """Whether PyTorch multiplies float32 matrices with MKL."""
    return torch.backends.mkl.is_available()


@functools.cache
def maker() -> str:
    """The maker that the processor names (``"GenuineIntel"``); empty if not known."""
    # Windows: "AMD64 Family 25 Model 17 Stepping 1, AuthenticAMD".
    return of_cpuinfo("vendor_id") or platform.processor().rpartition(", ")[2]


def of_cpuinfo(key: str) -> str:
    """A value of the first processor in /proc/cpuinfo; empty if it is not there."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
