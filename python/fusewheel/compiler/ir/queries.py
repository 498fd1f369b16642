"""Attention of one query, as each token of a text needs it."""

from __future__ import annotations

import torch
from torch import Tensor

from fusewheel.compiler.ir.canonical import View
from fusewheel.compiler.ir.metadata import Size, same_size, same_sizes, tensor_of

# More queries of a head share what is read of the keys in PyTorch's kernel too.
_MOST = 16


def is_of_one_query(found: View) -> bool:
    """Whether a call of PyTorch's attention is that of one query of each head.

    It sees all keys, or those that a boolean mask shows to each sequence. With a mask, transformers
    writes the heads that share keys as queries of one head.

    Args:
        found: a view of the call, whose ``op`` is ``"attention"``.
    """
    query, key, value = (tensor_of(argument) for argument in found.args[:3])
    if query is None or key is None or value is None:
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
        and _is_for_sequences(found.args[3], query.shape[0])
        and (same_size(query.shape[2], 1) or (found.args[3] is not None and _are_heads(query, key)))
        and same_sizes((query.shape[0], query.shape[3]), (key.shape[0], key.shape[3]))
        and same_sizes(key.shape[:2], value.shape[:2])
    )


def _are_heads(query: Tensor, key: Tensor) -> bool:
    """Whether the queries of a head are heads that share keys: they lie one after the other."""
    count = query.shape[2]
    if not isinstance(count, int) or count > _MOST or not same_size(query.shape[1], key.shape[1]):
        return False
    return same_size(query.stride(1), count * query.stride(2))


def _is_for_sequences(mask: object, batch: Size) -> bool:
    """Whether a mask is None or ``[batch or 1, 1, 1, keys]``, boolean."""
    if mask is None:
        return True
    tensor = tensor_of(mask)
    if tensor is None or tensor.dtype != torch.bool or tensor.dim() != 4:
        return False
    sequences, heads, queries, _ = tensor.shape
    alike = same_size(sequences, 1) or same_size(sequences, batch)
    return alike and same_size(heads, 1) and same_size(queries, 1)
