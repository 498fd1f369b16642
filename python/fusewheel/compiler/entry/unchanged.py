"""Finds out whether a model or its cache changed while it ran, and takes that back."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch


class Unchanged:
    """What the attributes of all modules of a model are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._tables = [table for module in model.modules() for table in _tables(module)]
        self._seen = [dict(table) for table in self._tables]

    def restore(self) -> bool:
        """Put everything back as it was; returns whether anything had changed."""
        changed = False
        for table, seen in zip(self._tables, self._seen, strict=True):
            if not same(table, seen):
                changed = True
                table.clear()
                table.update(seen)
        return changed


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two dictionaries hold the same objects."""
    return a.keys() == b.keys() and all(map(operator.is_, a.values(), map(b.__getitem__, a)))


def _tables(module: torch.nn.Module) -> list[dict[str, Any]]:
    """The attributes of a module, and those that are dictionaries: weights, modules, hooks."""
    own = vars(module)
    return [own, *(value for value in own.values() if isinstance(value, dict))]
