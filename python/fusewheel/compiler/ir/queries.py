"""Attention of one query, as each token of a text needs it."""

from __future__ import annotations

import torch

from fusewheel.compiler.ir.canonical import View
from fusewheel.compiler.ir.metadata import same_size, same_sizes, tensor_of


def is_of_one_query(found: View) -> bool:
    """Whether a call of PyTorch's attention is that of one query of each head to all keys.

    Args:
        found: a view of the call, whose ``op`` is ``"attention"``.
    """
    query, key, value = (tensor_of(argument) for argument in found.args[:3])
    if query is None or key is None or value is None or found.args[3] is not None:
        return False
    if found.attrs["is_causal"] or found.attrs["dropout_p"]:
        return False
    if not isinstance(found.attrs["scale"], (int, float, type(None))):
        return False
    if not query.dtype == key.dtype == value.dtype or query.dtype == torch.float64:
        return False
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    # Keys and values may have symbols of their own for their number.
    heads, own = query.shape[1], key.shape[1]
    whole = isinstance(heads, int) and isinstance(own, int) and own > 0 and heads % own == 0
    return (
        whole
        and same_size(query.shape[2], 1)
        and same_sizes((query.shape[0], query.shape[3]), (key.shape[0], key.shape[3]))
        and same_sizes(key.shape[:2], value.shape[:2])
    )
