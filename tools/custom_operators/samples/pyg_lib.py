"""pyg-lib, of which there is no wheel to install."""

from __future__ import annotations

from collections.abc import Iterator

import pyg_lib
from tried import Tried

assert pyg_lib


def operators() -> Iterator[Tried]:
    """None, until it can be installed."""
    yield from ()
