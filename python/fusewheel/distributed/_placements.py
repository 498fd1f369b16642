"""Where the rows and the classes of a loss are on a mesh of devices."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from fusewheel.distributed._vocabulary import VocabularyLoss, divisor
from fusewheel.ops._rows import wide


def check_target(op: str, target: Tensor, x: Tensor) -> None:
    """Raises ValueError unless there is one target for each row of `x`."""
    if target.shape != x.shape[:-1]:
        raise ValueError(
            f"{op}: target must have shape {list(x.shape[:-1])}, got {list(target.shape)}"
        )


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
    tensor: DTensor,
    classes: int,
    at: int,
    weight: Tensor | None,
    options: tuple[int, float, float, float],
) -> VocabularyLoss:
    """The loss on one device; dimension `at` of the mesh cuts the classes."""
    mesh = tensor.device_mesh
    if weight is not None:
        if weight.requires_grad:
            raise RuntimeError("cross_entropy: the weights of distributed classes get no gradient")
        weight = wide(weight.full_tensor() if isinstance(weight, DTensor) else weight)
    start = mesh.get_local_rank(at) * -(-classes // mesh.size(at))
    return VocabularyLoss(mesh.get_group(at), start, classes, weight, *options)


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
