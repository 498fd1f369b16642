"""Whether TorchScript can be used, and where warnings should point."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from fusewheel.errors import FusewheelError

_LIBRARIES = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}")


class TorchScriptError(FusewheelError, RuntimeError):
    """TorchScript, or a part of it, cannot be used; the message says what to use instead."""


def require_torchscript() -> None:
    """Raise an error if PyTorch has no TorchScript for this Python.

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


def users_stacklevel() -> int:
    """The `stacklevel` with which a warning of the caller points to the user's line.

    That is the innermost line which is neither in this package nor in torch.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        level, frame = level + 1, frame.f_back
    return level
