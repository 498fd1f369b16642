"""The spellings of the operations that `fusewheel.compiler.ir.canonical.view` knows."""

from __future__ import annotations

from fusewheel.compiler.ir.spellings import functions, losses, masks, shapes

__all__ = ["functions", "losses", "masks", "shapes"]
