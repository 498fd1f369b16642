"""What a mask hides by position, as the window of `fusewheel.attention`."""

from __future__ import annotations

import math

import torch

from fusewheel.compiler.ir.metadata import Size, same_size
from fusewheel.compiler.read.masks import Mask


def window_of(mask: Mask, queries: Size, keys: Size) -> tuple[int, int] | None:
    """The bounds of a mask, counted from the key at the place of a query; -1 is no bound.

    A mask counts from the first query and the first key, the window from the last of both.

    Returns:
        how many keys a query sees before and after that key; None if such a window cannot say it.
    """
    if mask.lower is None and mask.upper is None:
        return -1, -1
    if isinstance(queries, int) and isinstance(keys, int):
        later = keys - queries
    elif same_size(queries, keys):
        later = 0
    else:
        return None
    left = None if mask.lower is None else later - mask.lower
    right = None if mask.upper is None else mask.upper - later
    if any(bound is not None and bound < 0 for bound in (left, right)):
        return None
    return -1 if left is None else left, -1 if right is None else right


def hides_fully(mask: Mask, queries: Size, keys: Size, dtype: torch.dtype | None) -> bool:
    """Whether a hidden key has no weight at all, so that it need not be looked at.

    A finite number hides a key only where another key is seen, and float16 has scores of that size.
    """
    if mask.hidden is None or dtype is None or mask.hidden == -math.inf:
        return mask.hidden is not None
    small = dtype != torch.float16 and mask.hidden <= torch.finfo(dtype).min
    return small and mask.shows_every_query_a_key(queries, keys)
