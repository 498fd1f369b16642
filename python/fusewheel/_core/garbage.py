"""Python's cyclic garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections(*, stays: bool = False) -> Iterator[None]:
    """Run a block without the garbage collector, 15 % of the time of compiling or loading a model.

    Both make millions of objects that stay, and each collection looks at them.

    Args:
        stays: whether next to nothing of what the block makes is garbage. All objects of the
            process then count as old ones, which full collections look at. Otherwise the next two
            collections look at all that the block made, and only then it is old. Default False.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # What the user has frozen must stay so.
        if enabled and stays and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # to where the old ones are
        if enabled:
            gc.enable()
