"""DTensor's registry of sharding rules; importing this module imports DTensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard

from fusewheel._torch.find import find

if TYPE_CHECKING:
    from torch.distributed.tensor._op_schema import OpSchema, OpStrategy, RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
    from torch.distributed.tensor.placement_types import _StridedShard as StridedShard
else:
    _PURPOSE = "run operators on distributed tensors"
    _SCHEMA = "torch.distributed.tensor._op_schema"
    OpSchema = find(f"{_SCHEMA}.OpSchema", _PURPOSE)
    OpStrategy = find(f"{_SCHEMA}.OpStrategy", _PURPOSE)
    RuntimeSchemaInfo = find(f"{_SCHEMA}.RuntimeSchemaInfo", _PURPOSE)
    expand_to_full_mesh_op_strategy = find(
        "torch.distributed.tensor._ops.utils.expand_to_full_mesh_op_strategy", _PURPOSE
    )
    # Without it no tensor is cut that way.
    StridedShard = find(
        "torch.distributed.tensor.placement_types._StridedShard",
        _PURPOSE,
        type("StridedShard", (Shard,), {}),
    )

__all__ = [
    "OpSchema",
    "OpStrategy",
    "RuntimeSchemaInfo",
    "StridedShard",
    "expand_to_full_mesh_op_strategy",
    "register",
]


def register(overload: Any, strategies: Any, cache_key: RuntimeSchemaInfo) -> None:
    """Hand DTensor the rule of one operator."""
    DTensor._op_dispatcher.sharding_propagator.register_op_strategy(overload, strategies, cache_key)
