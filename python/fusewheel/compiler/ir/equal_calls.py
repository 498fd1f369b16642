"""Calls on example values of which PyTorch runs only the first of several equal ones.

A call of an operator on fake tensors takes a millisecond or more, and in a model with thirty equal
layers nearly all calls were there before. Its results are made again, as tensors of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch import copy_on_write
from fusewheel._torch.builtins import tree_leaves
from fusewheel._torch.fx import is_plain_fake, made_again
from fusewheel.compiler.ir.metadata import storage_of


class EqualCalls:
    """The calls that were made for one graph, with their results."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}

    def __call__(
        self,
        target: Callable[..., Any] | str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        modes: Hashable,
    ) -> Any:
        """The result of a call.

        Args:
            target: a function, or the name of a method of the first argument.
            args: its arguments.
            kwargs: its arguments by name.
            modes: under which it runs.
        """
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        try:
            key = target, modes, _key(args), _key(kwargs), *sharing(tensors)
            first = self._results.get(key)
        except TypeError:  # an argument of which nothing is known
            return _call(target, args, kwargs)
        if first is not None:
            return _again(first)
        result = _call(target, args, kwargs)
        if copy_on_write.AVAILABLE and _is_new(result, tensors):
            # Nobody else has these, and so they stay as they are.
            self._results[key] = _again(result)
        return result


def _call(target: Callable[..., Any] | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if isinstance(target, str):
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)


def _again(result: Tensor | tuple[Tensor, ...]) -> Any:
    return made_again(result) if isinstance(result, Tensor) else tuple(map(made_again, result))


def _key(value: Any) -> Hashable:
    """Equal for arguments with which a call does the same.

    Raises:
        TypeError: if that cannot be decided for an argument.
    """
    if isinstance(value, Tensor):
        if not is_plain_fake(value):
            raise TypeError
        return form_of(value)
    if isinstance(value, (tuple, list)):
        return type(value), *map(_key, value)
    if isinstance(value, Mapping):
        return tuple((name, _key(item)) for name, item in value.items())
    if isinstance(value, torch.SymInt):
        return torch.SymInt, value.node.expr
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        raise TypeError
    hash(value)
    return type(value), repr(value) if isinstance(value, float) else value


def _is_new(result: Any, given: Iterable[Tensor]) -> bool:
    """Whether results are plain tensors in memory of their own, without symbols of their own."""
    several = result if type(result) is tuple else (result,)
    if not several or not all(map(is_plain_fake, several)):
        return False
    memory = [storage_of(tensor) for tensor in several]
    shared = {storage_of(tensor) for tensor in given}.intersection(memory)
    known = set().union(*map(_symbols, given))
    whole = len(set(memory)) == len(memory)
    return whole and not shared and all(_symbols(tensor) <= known for tensor in several)


def form_of(tensor: Tensor) -> tuple[Any, ...]:
    """Dtype, sizes and strides, as expressions: comparing symbolic sizes would add a guard."""
    kind = type(tensor), tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg()
    return *kind, tensor.dim(), *map(_expression, _sizes(tensor))


def _symbols(tensor: Tensor) -> set[Any]:
    """In sizes and strides."""
    sizes = [size.node.expr for size in _sizes(tensor) if isinstance(size, torch.SymInt)]
    return set().union(*(size.free_symbols for size in sizes))


def _sizes(tensor: Tensor) -> list[Any]:
    return [*tensor.shape, *tensor.stride(), tensor.storage_offset()]


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def sharing(values: Sequence[Any]) -> list[int]:
    """Of each tensor the place of the first one in the same memory."""
    keys = [storage_of(value) if isinstance(value, Tensor) else None for value in values]
    return [keys.index(key) for key in keys]
