"""A linear layer in bfloat16 or float16 on a CPU whose own kernels for these are slow."""

from __future__ import annotations

import torch
from torch.fx import Node

from ..canonical import view
from ..metadata import dtype_of, shape_of, tensor_of
from ..pattern import Builder, Context, Match, Pattern, require

_HALF = frozenset({torch.bfloat16, torch.float16})


def _match(context: Context, node: Node) -> Match | None:
    found = view(node)
    if found is None:
        return None
    x, weight, bias = found.args
    tensors = [argument for argument in found.args if argument is not None]
    dtypes = {dtype_of(tensor) for tensor in tensors}
    # Other precisions have nothing to gain.
    if not dtypes <= _HALF:
        return None
    require(len(dtypes) == 1, f"its operands are {sorted(map(str, dtypes))}")
    require(len(shape_of(weight) or ()) == 2, "the weight is not a matrix")

    def build(builder: Builder) -> list[Node]:
        return [builder.call(PATTERN.overload(), x, weight, bias)]

    return Match(tuple(tensors), (node,), frozenset(), build)


def _cost(match: Match) -> str | None:
    tensor = tensor_of(match.inputs[0])
    if tensor is None or tensor.device.type != "cpu":
        return "only on a CPU is it faster than PyTorch's own"
    capability = torch.backends.cpu.get_cpu_capability()
    # With AVX-512 PyTorch's product in these dtypes keeps up or, with AMX, is faster than float32.
    if capability not in ("DEFAULT", "NO AVX", "AVX2"):
        return f"PyTorch's own {tensor.dtype} product is fast on this CPU ({capability})"
    return None


PATTERN = Pattern(
    name="linear",
    operator="fusewheel::linear",
    anchors=frozenset({"linear"}),
    match=_match,
    cost=_cost,
)
