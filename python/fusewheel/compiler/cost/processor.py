"""What cost rules ask about the processor and about PyTorch's libraries for it.

Environment variables can answer instead, so that every rule can be tried on every machine:
``FUSEWHEEL_COMPILER_AVX512``, ``FUSEWHEEL_COMPILER_AMX`` and ``FUSEWHEEL_COMPILER_MKL`` (0 or 1),
and ``FUSEWHEEL_COMPILER_MAKER``. They are read at every question.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

from fusewheel.compiler.cost import overrides

AMD = "AuthenticAMD"
"""What `maker` returns for a processor of AMD."""


def facts() -> tuple[bool, bool, str, bool]:
    """All facts of this module: whether there is AVX-512, and AMX, the maker, whether there is MKL.

    Raises:
        ValueError: if a variable has a value that it cannot have.
    """
    return has_avx512(), has_amx(), maker(), has_mkl()


def has_avx512() -> bool:
    """Whether PyTorch uses AVX-512, or better than the lowest level on other architectures."""
    asked = overrides.flag("FUSEWHEEL_COMPILER_AVX512")
    if asked is not None:
        return asked
    return torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "NO AVX", "AVX2")


def has_amx() -> bool:
    """Whether there are tiles for products of bfloat16 (AMX). Only Linux tells."""
    asked = overrides.flag("FUSEWHEEL_COMPILER_AMX")
    return _has_amx() and has_avx512() if asked is None else asked


@functools.cache
def _has_amx() -> bool:
    return "amx_bf16" in of_cpuinfo("flags").split()


def has_mkl() -> bool:
    """Whether PyTorch multiplies float32 matrices with MKL."""
    asked = overrides.flag("FUSEWHEEL_COMPILER_MKL")
    return torch.backends.mkl.is_available() if asked is None else asked


def maker() -> str:
    """The maker that the processor names (``"GenuineIntel"``); empty if not known."""
    return overrides.text("FUSEWHEEL_COMPILER_MAKER") or _maker()


@functools.cache
def _maker() -> str:
    # Windows: "AMD64 Family 25 Model 17 Stepping 1, AuthenticAMD".
    return of_cpuinfo("vendor_id") or platform.processor().rpartition(", ")[2]


def of_cpuinfo(key: str) -> str:
    """A value of the first processor in /proc/cpuinfo; empty if it is not there."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
