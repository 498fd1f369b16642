"""Computes on whole tensors what has no sharding rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate


def on_whole_tensors(
    function: Callable[..., Sequence[Tensor | None]], *groups: tuple[Any, ...]
) -> list[Tensor | None]:
    """`function(*groups)` with every distributed tensor gathered; the results are replicated."""
    mesh: DeviceMesh = next(a.device_mesh for g in groups for a in g if isinstance(a, DTensor))
    results = function(*(tuple(map(_whole, group)) for group in groups))
    return [None if result is None else _replicated(result, mesh) for result in results]


def _whole(argument: Any) -> Any:
    return argument.full_tensor() if isinstance(argument, DTensor) else argument


def _replicated(tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    return DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
