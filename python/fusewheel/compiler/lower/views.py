"""Nodes that show the memory of another node: a program computes their strides and runs nothing."""

from __future__ import annotations

from torch import Tensor
from torch.fx import Node

from fusewheel.compiler.ir.metadata import storage_of, value_of
from fusewheel.compiler.ir.purity import is_pure

# fmt: off
_METHODS = frozenset((
    "view", "transpose", "permute", "expand", "unsqueeze", "squeeze", "narrow", "select", "t",
    "view_as", "expand_as", "unflatten", "flatten", "reshape", "contiguous", "chunk", "split",
    "unbind", "detach",
))
# fmt: on


def shown_by(node: Node) -> Node | None:
    """The node whose memory `node` shows; None if it may have memory of its own.

    The example values tell: tensors of the same dtype that share their storage. A node that gives
    several views, such as ``chunk``, shows its operand too.
    """
    if not (is_pure(node) or (node.op == "call_method" and node.target in _METHODS)):
        return None
    value = value_of(node)
    tensors = [value] if isinstance(value, Tensor) else value
    if not isinstance(tensors, (tuple, list)) or not tensors:
        return None
    for source in node.all_input_nodes:
        shown = value_of(source)
        bases = [shown] if isinstance(shown, Tensor) else shown
        if not isinstance(bases, (tuple, list)):
            continue
        if all(any(_shares(tensor, base) for base in bases) for tensor in tensors):
            return source
    return None


def _shares(tensor: object, base: object) -> bool:
    if not isinstance(tensor, Tensor) or not isinstance(base, Tensor):
        return False
    key = storage_of(tensor)
    return key is not None and key == storage_of(base) and tensor.dtype == base.dtype
