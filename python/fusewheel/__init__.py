"""Fused PyTorch operators that work everywhere PyTorch does, from one wheel."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

import torch

from fusewheel._core.after_import import after_import
from fusewheel._core.caches import name_version_in_caches
from fusewheel._core.load import Backend
from fusewheel._core.version import __version__
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
# isort: split
from fusewheel._core.backends import backends

# isort: split
from fusewheel import engine, ops
from fusewheel.ops.public import *  # noqa: F403

if TYPE_CHECKING:
    from fusewheel import compiler as compiler
    from fusewheel import distributed as distributed
    from fusewheel import doctor as doctor
    from fusewheel import inductor as inductor
    from fusewheel import jit as jit
    from fusewheel import nn as nn
    from fusewheel import quantization as quantization
    from fusewheel import transformers as transformers
    from fusewheel.compiler import explain as explain
    from fusewheel.compiler import export as export
    from fusewheel.compiler import freeze as freeze
    from fusewheel.quantization import load_gguf as load_gguf
    from fusewheel.quantization import quantize_ as quantize_
    from fusewheel.transformers import patch as patch
    from fusewheel.transformers import register_quantizers as register_quantizers
    from fusewheel.transformers import unpatch as unpatch

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
    "engine",
    "explain",
    "export",
    "freeze",
    "inductor",
    "jit",
    "load_gguf",
    "patch",
    "quantization",
    "quantize_",
    "register_quantizers",
    "unpatch",
    *ops.functions(),
]

# Imported when they are asked for: most programs only call operators. `nn` and `transformers` are
# not in __all__, because `from fusewheel import *` would hide what else has these names.
_ROOMS = (
    *("compiler", "distributed", "doctor", "inductor", "jit", "nn", "quantization"),
    "transformers",
)

_log = logging.getLogger("fusewheel")


def __getattr__(name: str) -> Any:
    if name in ("explain", "export", "freeze"):
        return getattr(importlib.import_module("fusewheel.compiler"), name)
    if name in ("load_gguf", "quantize_"):
        return getattr(importlib.import_module("fusewheel.quantization"), name)
    if name in ("patch", "register_quantizers", "unpatch"):
        return getattr(importlib.import_module("fusewheel.transformers"), name)
    if name in _ROOMS:
        return importlib.import_module(f"fusewheel.{name}")
    raise AttributeError(f"module 'fusewheel' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*__all__, "nn", "transformers"})


def _register_sharding() -> None:
    try:
        importlib.import_module("fusewheel.distributed._rules").register_all(ops.operators())
    except Exception as error:
        # This runs inside of the user's own import of DTensor, which must not fail. A warning could
        # be turned into an error, a line of a log cannot.
        _log.warning(
            "fusewheel's operators take no distributed tensors with torch %s: %s: %s",
            *(torch.__version__, type(error).__name__, error),
        )


def _register_lora() -> None:
    try:
        importlib.import_module("fusewheel.transformers._lora").register_lora()
    except Exception as error:
        # As above: the import of peft must not fail.
        _log.warning(
            "peft puts no adapters on fusewheel's quantised layers: %s: %s",
            *(type(error).__name__, error),
        )


def _register_backend() -> None:
    try:
        importlib.import_module("fusewheel.transformers._accelerate").register_backend()
    except Exception as error:
        # As above: the import of accelerate must not fail.
        _log.warning(
            'the Trainer takes no torch_compile_backend="fusewheel": %s: %s; call '
            'model.compile(backend="fusewheel") before you make the Trainer',
            *(type(error).__name__, error),
        )


def _replace_captured_experts() -> None:
    try:
        module = importlib.import_module("fusewheel.transformers._experts")
        module.replace_captured_experts()
    except Exception as error:
        # As above: the import of transformers must not fail.
        _log.warning(
            "compiled loops over experts break their graph: %s: %s; call fusewheel.patch(model)",
            *(type(error).__name__, error),
        )


name_version_in_caches()
# Importing DTensor takes long, and most programs do not need it.
after_import("torch.distributed.tensor", _register_sharding)
after_import("peft.tuners.lora.model", _register_lora)
after_import("transformers.integrations.moe", _replace_captured_experts)
after_import("accelerate.utils.dataclasses", _register_backend)
