"""Ends a program with the reason where the CUDA kernels cannot run."""

from __future__ import annotations

import torch


def reason() -> str | None:
    """Why no CUDA kernel can run here; None if they can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, finds no GPU"
    import fusewheel

    found = [backend for backend in fusewheel.backends() if backend.device == "cuda"]
    if not found:
        return "the package fusewheel-cuda is not installed"
    return None if found[0].loaded else str(found[0].reason)


def require_gpu() -> None:
    """Raises SystemExit if `reason` has one."""
    if (why := reason()) is not None:
        raise SystemExit(f"the CUDA kernels need an NVIDIA GPU: {why}")
