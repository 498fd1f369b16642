"""The demo: one real language model in eager PyTorch, Inductor and fusewheel, side by side.

``python -m fusewheel demo`` calls `main`.
"""

from __future__ import annotations

from fusewheel.demo.cli import main

__all__ = ["main"]
