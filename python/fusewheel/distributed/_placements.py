"""Where the rows and the classes of a loss lie on a mesh of devices."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from fusewheel._rows import wide
from fusewheel.distributed._vocabulary import Loss, divisor


def check_target(op: str, target: Tensor, x: Tensor) -> None:
    """Raises ValueError unless there is one target for each row of `x`."""
    if target.shape != x.shape[:-1]:
        raise ValueError(
            f"{op}: target must have shape {list(x.shape[:-1])}, got {list(target.shape)}"
        )


def vocabulary_dimension(tensor: DTensor, classes: int) -> int | None:
    """The dimension of the mesh that alone cuts the classes, if every device gets some."""
    found = [i for i, p in enumerate(tensor.placements) if p.is_shard(classes)]
    if len(found) != 1:
        return None
    pieces = tensor.device_mesh.size(found[0])
    each = -(-tensor.shape[classes] // pieces)
    return found[0] if each * (pieces - 1) < tensor.shape[classes] else None


def row_placements(x: DTensor) -> list[Placement]:
    """How a tensor without the last dimension of `x` lies beside it."""
    last = x.dim() - 1
    return [p if p.is_shard() and not p.is_shard(last) else Replicate() for p in x.placements]


def distributed(tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    """A tensor that is not distributed is the same on every device."""
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)


def on_rows(target: Tensor, mesh: DeviceMesh, rows: list[Placement]) -> Tensor:
    """What a device has of the targets, beside its rows."""
    return distributed(target, mesh).redistribute(placements=rows).to_local()


def spread_loss(
    tensor: DTensor,
    classes: int,
    at: int,
    weight: Tensor | None,
    options: tuple[int, float, float, float],
) -> Loss:
    """The loss as a device sees it, whose classes dimension `at` of the mesh cuts."""
    mesh = tensor.device_mesh
    if weight is not None:
        if weight.requires_grad:
            raise RuntimeError("cross_entropy: the weights of distributed classes get no gradient")
        weight = wide(weight.full_tensor() if isinstance(weight, DTensor) else weight)
    start = mesh.get_local_rank(at) * -(-classes // mesh.size(at))
    return Loss(mesh.get_group(at), start, classes, weight, *options)


def reduced(
    values: Tensor,
    classes: Tensor,
    shape: torch.Size,
    like: DTensor,
    rows: list[Placement],
    loss: Loss,
    reduction: str,
) -> Tensor:
    """The losses of this device's rows, or their sum or mean over all devices."""
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
