"""Decisions about sizes that may be symbols, also of values that are only known at run time.

PyTorch's module behind this takes long to import. It is imported once a size is a symbol.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def known(condition: Any) -> bool:
    """Whether a condition on sizes holds, as far as that is known while tracing.

    A size that was traced with an example value is compared by that value, which makes a guard. A
    size that is only known at run time makes a condition false unless it holds for every value.
    """
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(condition)


def possible(condition: Any) -> bool:
    """Whether a condition on sizes can hold: the opposite of it is not known."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    return guard_or_true(condition)


def is_unbacked(size: Any) -> bool:
    """Whether a size is only known at run time."""
    return any_unbacked((size,))


def any_unbacked(sizes: Iterable[Any]) -> bool:
    """Whether one of these sizes is only known at run time."""
    symbols = [size for size in sizes if isinstance(size, torch.SymInt)]
    if not symbols:
        return False
    from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

    return any(has_free_unbacked_symbols(symbol) for symbol in symbols)
