"""Linear layers that PyTorch computes slowly on a CPU: in half precision, or where MKL is slow."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from fusewheel.compiler.cost import processor
from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import dtype_of, requires_grad, shape_of, tensor_of
from fusewheel.compiler.ir.pattern import Builder, Context, Match, Pattern, require

_HALF = frozenset({torch.bfloat16, torch.float16})
# With up to this number of rows and no gradient, MKL is slower on processors of all makers. So is
# PyTorch's product of bfloat16 on AMD processors, and that of both half types where there is AMX.
_FEW_ROWS = 4
# On AMD processors, MKL is slower from this number of rows on, without and with a gradient. The key
# says whether the processor has AVX-512, which MKL does not use there.
_MANY_ROWS = {True: (1, 16), False: (64, 512)}
# With fewer elements in the weight the time of a call counts most.
_SMALL_WEIGHT = 2**16


def _match(context: Context, node: Node) -> Match | None:
    found = view(node)
    if found is None:
        return None
    x, weight, bias = found.args
    tensors = [argument for argument in found.args if argument is not None]
    dtypes = {dtype_of(tensor) for tensor in tensors}
    if not (dtypes <= _HALF or _is_slow_in_float32(node, x, weight, dtypes)):
        return None  # PyTorch is as fast
    require(len(dtypes) == 1, f"its operands are {sorted(map(str, dtypes))}")
    require(len(shape_of(weight) or ()) == 2, "the weight is not a matrix")

    def build(builder: Builder) -> list[Node]:
        return [builder.call(PATTERN.overload(), x, weight, bias)]

    return Match(tuple(tensors), (node,), frozenset(), build)


def _is_slow_in_float32(node: Node, x: Node, weight: Node, dtypes: set[torch.dtype | None]) -> bool:
    """Whether MKL is slow with this number of rows, and the rows of the weight are contiguous."""
    matrix = tensor_of(weight)
    if dtypes != {torch.float32} or dtype_of(node) != torch.float32 or matrix is None:
        return False
    if matrix.device.type != "cpu" or matrix.dim() != 2 or not _is_large(matrix):
        return False
    trained = requires_grad(node)
    few = _is_few(x) and not trained
    return few or (processor.maker() == processor.AMD and _is_many(_rows(x), trained))


def _is_few(x: Node) -> bool:
    rows = _rows(x)
    return rows is not None and 1 <= rows <= _FEW_ROWS


def _is_many(rows: int | None, trained: bool) -> bool:
    """Whether MKL is slower on AMD processors; yes for an unknown number of rows with AVX-512."""
    wide = processor.has_avx512()
    return wide if rows is None else rows >= _MANY_ROWS[wide][trained]


def _is_large(weight: torch.Tensor) -> bool:
    elements, step = weight.numel(), weight.stride(1)
    return isinstance(elements, int) and elements >= _SMALL_WEIGHT and step == 1


def _rows(x: Node) -> int | None:
    sizes = (shape_of(x) or ())[:-1]
    fixed = [size for size in sizes if isinstance(size, int)]
    return math.prod(fixed) if len(fixed) == len(sizes) else None


def _cost(match: Match) -> str | None:
    x = match.inputs[0]
    tensor = tensor_of(x)
    if tensor is None or tensor.device.type != "cpu":
        return "it is only faster than PyTorch's own on a CPU"
    if tensor.dtype == torch.float32:
        return _cost_in_float32(x)
    if _is_slow_in_half(match, tensor.dtype):
        return None
    return f"PyTorch's own {tensor.dtype} product is fast on this CPU"


def _is_slow_in_half(match: Match, dtype: torch.dtype) -> bool:
    if not processor.has_avx512():
        return True
    if processor.has_amx():
        return _is_few_for_a_large_weight(match)
    # Processors without AMX have no instructions for float16.
    return dtype == torch.float16 or (
        processor.maker() == processor.AMD and _is_few_for_a_large_weight(match)
    )


def _is_few_for_a_large_weight(match: Match) -> bool:
    """Whether there are few rows, no gradient, and a weight that is worth a call."""
    weight = tensor_of(match.inputs[1])
    few = _is_few(match.inputs[0]) and not requires_grad(match.roots[0])
    return few and weight is not None and _is_large(weight)


def _cost_in_float32(x: Node) -> str | None:
    if not processor.has_mkl():
        return "float32: only MKL was measured to be slower"
    # On AMD processors MKL uses one thread for one row.
    if _rows(x) == 1 and processor.maker() != processor.AMD:
        return "one row in float32: MKL was measured to be slower on AMD processors only"
    return None


PATTERN = Pattern(
    name="linear",
    operator="fusewheel::linear",
    anchors=frozenset({"linear"}),
    match=_match,
    cost=_cost,
)
