"""The graph as patterns see it: one form for each operation, metadata, effects, and matches.

The table of spellings is filled as soon as anything here is imported.
"""

from __future__ import annotations

from fusewheel.compiler.ir import spellings as spellings
