"""Whether two layers of a model compute the same of their inputs and weights.

That is seen from their modules: classes, numbers and sizes. Only weights may differ.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.modules import has_hooks
from fusewheel.compiler.ir.equal_calls import form_of, sharing

# Where a layer stands among the others: who repeats layers hands them what they need of that. peft
# notes the second one beside the arguments with which it was made.
_PLACES = frozenset({"layer_idx", "target_name"})
_TABLES = frozenset({"_parameters", "_buffers", "_modules"})
_PLAIN = (
    *(int, float, bool, str, type(None), torch.dtype, torch.device),
    *(torch.Size, tuple, set, frozenset),
)


def is_alike(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    """Whether two layers compute the same of their inputs and weights.

    What each of them has as a `forward` of its own is not compared: while layers are compiled, it
    is the caller's.
    """
    pairs = itertools.zip_longest(first.named_modules(), second.named_modules())
    return all(
        a is not None
        and b is not None
        and a[0] == b[0]
        and _computes_alike(a[1], b[1], but="" if a[0] else "forward")
        for a, b in pairs
    ) and sharing(weights_of(first)) == sharing(weights_of(second))


def _computes_alike(first: torch.nn.Module, second: torch.nn.Module, but: str) -> bool:
    own, other = vars(first), vars(second)
    return (
        type(first) is type(second)
        and not has_hooks(first)
        and not has_hooks(second)
        and own.keys() == other.keys()
        and all(
            name in _PLACES or name in _TABLES or _is_same(value, other[name])
            for name, value in own.items()
            if name != but
        )
        and _have_alike(first._parameters, second._parameters)
        and _have_alike(first._buffers, second._buffers)
    )


def _is_same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, functools.partial):
        same_form = len(a.args) == len(b.args) and list(a.keywords) == list(b.keywords)
        return same_form and all(map(_is_same, _parts(a), _parts(b)))
    if isinstance(a, dict):
        return list(a) == list(b) and all(k in _PLACES or _is_same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return isinstance(a, _PLAIN) and bool(a == b)


def _parts(call: functools.partial[Any]) -> tuple[Any, ...]:
    return call.func, *call.args, *call.keywords.values()


def _have_alike(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        a is b or (a is not None and b is not None and form_of(a) == form_of(b))
        for a, b in zip(first.values(), second.values(), strict=True)
    )


def weights_of(layer: torch.nn.Module) -> list[Tensor]:
    """Parameters and buffers; one that two modules share is there twice."""
    parameters = layer.named_parameters(remove_duplicate=False)
    buffers = layer.named_buffers(remove_duplicate=False)
    return [tensor for _, tensor in itertools.chain(parameters, buffers)]
