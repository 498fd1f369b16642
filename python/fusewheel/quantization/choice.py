"""Which layers of a model a function is for, as the caller says."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from torch import nn

Filter = Callable[[nn.Module, str], bool]
"""`filter_fn(module, name)`, as for `torchao.quantization.quantize_`."""
OldFilter = Callable[[str, nn.Module], bool]


def chosen(what: str, filter_fn: Filter | None, old: OldFilter | None) -> Filter:
    """The filter that a caller has given, under its present or its old name.

    Args:
        what: the function that was called, for messages.
        filter_fn: the argument `filter_fn`; None chooses every layer.
        old: the argument `filter`, which has the name first.

    Raises:
        TypeError: what is given cannot be called.
        ValueError: both are given.
    """
    for name, given in (("filter_fn", filter_fn), ("filter", old)):
        if given is not None and not callable(given):
            raise TypeError(f"{what}: {name} must be a function, got {type(given).__name__}")
    if old is None:
        return filter_fn or (lambda module, name: True)
    if filter_fn is not None:
        raise ValueError(f"{what}: filter must be left out where filter_fn is given, got both")
    warnings.warn(
        f"{what}: filter(name, module) will be removed in the next release; pass "
        "filter_fn(module, name), which has the module first",
        DeprecationWarning,
        stacklevel=3,
    )
    name_first = old
    return lambda module, name: name_first(name, module)
