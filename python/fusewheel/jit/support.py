"""Where TorchScript itself can be used."""

from __future__ import annotations

import sys

from fusewheel.errors import FusewheelError


class TorchScriptError(FusewheelError, RuntimeError):
    """TorchScript, or a part of it, cannot be used here; the message says what can instead."""


def require_torchscript() -> None:
    """Refuse a Python for which PyTorch has no TorchScript.

    Raises:
        TorchScriptError: on Python 3.14 and later.
    """
    if sys.version_info >= (3, 14):
        version = ".".join(map(str, sys.version_info[:2]))
        raise TorchScriptError(
            f"fusewheel.jit: PyTorch does not support TorchScript on Python {version} (3.13 is the "
            "last); use torch.compile(model, backend='fusewheel'), or torch.export for a model "
            "without Python"
        )
