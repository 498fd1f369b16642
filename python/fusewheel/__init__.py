"""Fused PyTorch operators that work everywhere PyTorch does, from one wheel."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from fusewheel._after_import import after_import
from fusewheel._load import Backend, load_backends
from fusewheel._version import __version__
from fusewheel.errors import (
    BackendError,
    BackendUnavailableError,
    DriverTooOldError,
    FusewheelError,
    LibraryLoadError,
    NoBackendError,
    SignatureMismatchError,
    TorchTooOldError,
    VersionMismatchError,
)

# The schemas are in the kernel libraries, so these load before the operators are declared.
_backends = load_backends()

from fusewheel import ops  # noqa: E402
from fusewheel.ops import *  # noqa: E402, F403

if TYPE_CHECKING:
    from fusewheel import compiler as compiler
    from fusewheel import distributed as distributed
    from fusewheel import doctor as doctor
    from fusewheel import inductor as inductor
    from fusewheel import jit as jit
    from fusewheel import quantization as quantization
    from fusewheel.compiler import explain as explain
    from fusewheel.compiler import export as export
    from fusewheel.quantization import quantize_ as quantize_

__all__ = [
    "Backend",
    "BackendError",
    "BackendUnavailableError",
    "DriverTooOldError",
    "FusewheelError",
    "LibraryLoadError",
    "NoBackendError",
    "SignatureMismatchError",
    "TorchTooOldError",
    "VersionMismatchError",
    "__version__",
    "backends",
    "compiler",
    "distributed",
    "doctor",
    "explain",
    "export",
    "inductor",
    "jit",
    "quantization",
    "quantize_",
    *ops.__all__,
]


def backends() -> tuple[Backend, ...]:
    """The installed kernel libraries: which are in use, and why the others are not."""
    return _backends


def __getattr__(name: str) -> Any:
    # These are imported when they are asked for: most programs only call operators.
    if name in ("explain", "export"):
        return getattr(importlib.import_module("fusewheel.compiler"), name)
    if name == "quantize_":
        return importlib.import_module("fusewheel.quantization").quantize_
    if name in ("compiler", "distributed", "doctor", "inductor", "jit", "quantization"):
        return importlib.import_module(f"fusewheel.{name}")
    raise AttributeError(f"module 'fusewheel' has no attribute '{name}'")


def _register_sharding() -> None:
    try:
        importlib.import_module("fusewheel.distributed._rules").register_all(ops.operators())
    except (ImportError, AttributeError) as error:
        # Whoever imports DTensor may not even use these operators.
        warnings.warn(f"fusewheel: no sharding rules for this torch: {error}", stacklevel=2)


# DTensor takes long to import, and most programs never do.
after_import("torch.distributed.tensor", _register_sharding)
