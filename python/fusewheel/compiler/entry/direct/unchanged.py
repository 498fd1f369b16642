"""Finds out whether a model has changed: while it ran, or since it was looked at."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter, getitem, is_
from typing import Any, TypeVar

import torch
from torch import Tensor

from fusewheel._torch.compiled_module import attributes
from fusewheel._torch.modules import NOT_IN_FORWARD, Snapshot, global_hooks

# Their modules are known, and their configurations and files are looked at.
PACKAGES = "transformers.", "peft."
_LAYOUT = attrgetter("shape"), attrgetter("dtype"), attrgetter("device"), Tensor.stride
# `generate` notes on a model how long its last static cache was.
_NOTES = frozenset({"_previous_max_cache_length"})
# What all modules have are mostly dictionaries, and what is in these is looked at.
_OF_ALL_MODULES = vars(torch.nn.Module()).keys() - {"training"}

_Object = TypeVar("_Object")


class Unchanged:
    """What the attributes of all modules of a model are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._tables = [table for module in model.modules() for table in _tables(module)]
        self._seen = [dict(table) for table in self._tables]
        self._lists = [
            value
            for module in model.modules()
            for value in vars(module).values()
            if isinstance(value, list)
        ]
        self._seen_in_lists = list(map(list, self._lists))

    def restore(self) -> bool:
        """Put everything back as it was; returns whether anything had changed."""
        changed = False
        for table, seen in zip(self._tables, self._seen, strict=True):
            if not same(table, seen):
                changed = True
                table.clear()
                table.update(seen)
        for values, held in zip(self._lists, self._seen_in_lists, strict=True):
            if list(map(id, values)) != list(map(id, held)):
                changed = True
                values[:] = held
        return changed


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two dictionaries hold the same objects."""
    return a.keys() == b.keys() and all(map(is_, a.values(), map(b.__getitem__, a)))


def _tables(module: torch.nn.Module) -> list[dict[str, Any]]:
    """The attributes of a module, and those that are dictionaries: weights, modules, hooks."""
    own = vars(module)
    return [own, *(value for value in own.values() if isinstance(value, dict))]


class Watched:
    """A model as it is now: attributes, weights, classes, and what their code names.

    It stands in for the guards with which Dynamo checks a model before each call. It includes the
    configuration; functions that replace others in a class, in a file of transformers or peft, or
    in `torch.nn.functional`; and attention functions that are registered by name. It does not
    include the numbers in parameters and buffers: programs read these in each call.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._own = len(_attributes(model))
        objects = [*(vars(module) for module in model.modules()), *_settings(model)]
        objects = _once(objects)
        named: list[tuple[Mapping[str, Any], str]]
        named = [(own, name) for own in objects for name in _names(own, model)]
        namespaces = list(_namespaces(model))
        named += [(names, name) for names in namespaces for name in names]
        # In columns, so that a pass over all of them is one call.
        self._columns = list(zip(*named, strict=True))
        self._objects = [names[name] for names, name in named]
        inside = [*chain.from_iterable(map(_containers, objects)), *global_hooks()]
        inside = _once([*inside, *chain.from_iterable(map(_registries, namespaces))])
        self._empty = [found for found in inside if not found]
        self._filled = [found for found in inside if found]
        self._filled += [own for own in objects if own is not vars(model)]
        self._sizes = list(map(len, self._filled))
        inside = [found for found in inside if found]
        self._items = [found if isinstance(found, list) else found.values() for found in inside]
        self._seen = list(chain.from_iterable(self._items))
        self._tensors = [*model.parameters(), *model.buffers()]
        self._layouts = self._read_layouts()
        # Most of it lies in dictionaries, and a look at whether these were written to is quick.
        tables = _once([*(names for names, _ in named), *inside])
        self._tables = [names for names in tables if isinstance(names, dict)]
        self._lists = [found for found in inside if isinstance(found, list)]
        others = [(names, name) for names, name in named if not isinstance(names, dict)]
        self._of_classes = list(zip(*others, strict=True))
        self._others = self._outside_tables()
        self._snapshot: Snapshot | None = None

    def is_same(self) -> bool:
        """Whether nothing has changed."""
        if self._is_untouched():
            return True
        # Taken first, so that what another thread changes meanwhile is seen the next time.
        snapshot = Snapshot(self._tables, self._tensors)
        if not self._holds_the_same():
            return False
        self._snapshot = snapshot
        return True

    def _is_untouched(self) -> bool:
        """Whether nothing was written to since it was last the same.

        Returns:
            False also after a change that was undone.
        """
        try:
            return (
                self._snapshot is not None
                and not any(self._empty)
                and self._snapshot.is_same()
                and self._outside_tables() == self._others
            )
        except KeyError:  # a name of a class or file is gone
            return False

    def _holds_the_same(self) -> bool:
        """Whether there are the same objects everywhere, with the same layouts."""
        try:
            return (
                not any(self._empty)
                and list(map(len, self._filled)) == self._sizes
                and all(map(is_, map(getitem, *self._columns), self._objects))
                and all(map(is_, chain.from_iterable(self._items), self._seen))
                and self._read_layouts() == self._layouts
                and len(_attributes(self._model)) == self._own
            )
        except (KeyError, RuntimeError):  # something is gone, or changes while it is read
            return False

    def _outside_tables(self) -> list[int]:
        """What lists and the namespaces of classes hold, which are no dictionaries."""
        of_classes = map(getitem, *self._of_classes)
        return list(map(id, chain(of_classes, chain.from_iterable(self._lists))))

    def _read_layouts(self) -> list[Any]:
        return [list(map(read, self._tensors)) for read in _LAYOUT]


def _once(found: Iterable[_Object]) -> list[_Object]:
    return list({id(one): one for one in found}.values())


def _attributes(model: torch.nn.Module) -> dict[str, Any]:
    """The attributes of a model that may decide what it computes."""
    return {name: value for name, value in attributes(model).items() if name not in _NOTES}


def _names(own: dict[str, Any], model: torch.nn.Module) -> Iterable[str]:
    """The attributes to look at of an object that has these."""
    if own is vars(model):
        own = _attributes(model)
    return own.keys() - _OF_ALL_MODULES if "_parameters" in own else own


def _containers(own: Mapping[str, Any]) -> Iterator[Any]:
    for name, value in own.items():
        if isinstance(value, (dict, list)) and name not in NOT_IN_FORWARD:
            yield value


def _settings(model: torch.nn.Module) -> list[dict[str, Any]]:
    """The attributes of the configurations of all modules, and of objects in these."""
    found: dict[int, dict[str, Any]] = {}
    left = [vars(module).get("config") for module in model.modules()]
    while left:
        value = left.pop()
        if not type(value).__module__.startswith(PACKAGES) or not hasattr(value, "__dict__"):
            continue
        own = vars(value)
        if id(own) not in found:  # a part may name the whole
            found[id(own)] = own
            left += own.values()
    return list(found.values())


def _namespaces(model: torch.nn.Module) -> Iterator[Mapping[str, Any]]:
    """The classes of all modules, and the files in which those of transformers define `forward`."""
    yield vars(torch.nn.functional)
    classes = {c for kind in set(map(type, model.modules())) for c in kind.__mro__}
    # Dynamo replaces methods of `Module` when it is imported.
    for kind in classes - {torch.nn.Module, object}:
        yield vars(kind)
        if "forward" in vars(kind) and kind.__module__.startswith(PACKAGES):
            yield vars(sys.modules[kind.__module__])


def _registries(names: Mapping[str, Any]) -> Iterator[dict[Any, Any]]:
    """Functions by name, such as `ALL_ATTENTION_FUNCTIONS`: an object's own, and its class's."""
    for value in list(names.values()):
        if type(value).__module__.startswith(PACKAGES) and isinstance(value, Mapping):
            for own in (getattr(value, "__dict__", {}), vars(type(value))):
                yield from (table for table in own.values() if isinstance(table, dict))
