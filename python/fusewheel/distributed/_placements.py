"""Where the rows and the classes of a loss are on a mesh of devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from fusewheel.dispatch.promise import fail
from fusewheel.distributed._vocabulary import VocabularyLoss, divisor
from fusewheel.ops._rows import wide


def as_on_one_device(x: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """Tensors without memory, by which a loss on one device would check its arguments.

    Dtypes of weights may differ from that of `x` here, as they may for `fusewheel.linear`.
    """

    def like(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        dtype = x.dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=dtype, device="meta")

    return tuple(map(like, (x, *others)))


def check_no_gradient(op: str, name: str, weight: Tensor | None) -> None:
    """Raises an error if the factors of the classes require a gradient."""
    if weight is not None and weight.requires_grad:
        fail(op, f"{name} must not require a gradient where the classes are distributed")


def matrix(tensor: Tensor) -> Tensor:
    """A tensor with one dimension for all rows."""
    return tensor.flatten(0, -2) if tensor.dim() > 1 else tensor.unsqueeze(0)


def vocabulary_dimension(tensor: DTensor, classes: int) -> int | None:
    """The only dimension of the mesh that cuts the classes; None if some device has no classes."""
    found = [i for i, p in enumerate(tensor.placements) if p.is_shard(classes)]
    if len(found) != 1:
        return None
    pieces = tensor.device_mesh.size(found[0])
    each = -(-tensor.shape[classes] // pieces)
    return found[0] if each * (pieces - 1) < tensor.shape[classes] else None


def row_placements(x: DTensor) -> list[Placement]:
    """The placements of a tensor that has the dimensions of `x` without the last."""
    last = x.dim() - 1
    return [p if p.is_shard() and not p.is_shard(last) else Replicate() for p in x.placements]


def distributed(tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    """`tensor` as a DTensor; one that is not distributed is the same on every device."""
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)


def on_rows(target: Tensor, mesh: DeviceMesh, rows: list[Placement]) -> Tensor:
    """The targets of a device's rows."""
    return distributed(target, mesh).redistribute(placements=rows).to_local()


def spread_loss(
    op: str,
    tensor: DTensor,
    classes: int,
    at: int,
    weight: Tensor | None,
    options: tuple[int, float, float, float],
) -> VocabularyLoss:
    """The loss of operator `op` on one device; dimension `at` of the mesh cuts the classes."""
    mesh = tensor.device_mesh
    if weight is not None:
        weight = wide(weight.full_tensor() if isinstance(weight, DTensor) else weight)
    start = mesh.get_local_rank(at) * -(-classes // mesh.size(at))
    return VocabularyLoss(op, mesh.get_group(at), start, classes, weight, *options)


def reduced(
    values: Tensor,
    classes: Tensor,
    shape: torch.Size,
    like: DTensor,
    rows: list[Placement],
    loss: VocabularyLoss,
    reduction: str,
) -> Tensor:
    """The losses of this device's rows, or the sum or mean over all devices."""
    mesh, dtype = like.device_mesh, like.dtype
    if reduction == "none":
        values = values.to(dtype).view(classes.shape)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(values, mesh, rows, run_check=False, shape=shape, stride=stride)

    def summed(of_device: Tensor) -> Tensor:
        sums = [Partial() if p.is_shard() else p for p in rows]
        return DTensor.from_local(of_device, mesh, sums, run_check=False).redistribute(
            placements=[Replicate()] * mesh.ndim
        )

    total = summed(values.sum())
    if reduction == "mean":
        total = total / summed(divisor(classes.flatten(), loss))
    return total.to(dtype)
