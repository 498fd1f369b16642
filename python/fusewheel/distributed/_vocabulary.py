"""Cross entropy of rows of logits whose classes are spread over the processes of a group.

Each process runs the fused operator on its own classes, as if there were no others, with a class of
its own in the place of a target that it lacks. What that gets wrong is one factor a row, for the
probabilities, and one element a row, for the target. Three numbers a row are exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fusewheel._rows import wide


@dataclass(frozen=True)
class Loss:
    """The options of `fusewheel.cross_entropy`, and the classes of this process.

    Attributes:
        group: the processes that have the classes, in the order of these.
        start: the first class of this process.
        classes: how many there are in all processes.
        weight: the factor of each of them, in the dtype of computation, or None for ones.
    """

    group: dist.ProcessGroup
    start: int
    classes: int
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float

    def capped(self, logits: Tensor) -> Tensor:
        """The logits that the loss sees, in the dtype of computation."""
        z = wide(logits)
        return self.softcap * torch.tanh(z / self.softcap) if self.softcap > 0 else z

    def slope(self, z: Tensor) -> Tensor:
        """The derivative of the cap where it gives `z`."""
        return 1 - (z / self.softcap).square() if self.softcap > 0 else torch.ones_like(z)

    def own_weights(self, logits: Tensor) -> Tensor:
        """The factors of the classes of `logits`."""
        count = logits.shape[-1]
        if self.weight is None:
            return wide(logits.new_ones(count))
        return self.weight[self.start : self.start + count]


@dataclass(frozen=True)
class Rows:
    """What the gradient of some rows is made of.

    Attributes:
        unit: the gradient of the operator on this process's classes, or what it gives without.
        near: the class of each row that stands for the target.
        factor: of `unit`, one for each row.
        element: the gradient at `near`.
        smoothed: what label smoothing takes from each class, before its factor.
    """

    unit: Tensor
    near: Tensor
    factor: Tensor
    element: Tensor
    smoothed: Tensor


def rows_of(logits: Tensor, target: Tensor, loss: Loss, needs_grad: bool) -> tuple[Tensor, Rows]:
    """The loss `[N]` of rows of this process's logits `[N, own classes]`, and its gradient's parts.

    Args:
        logits: of this process.
        target: int64 `[N]`, the same in all processes.
        loss: which it is.
        needs_grad: whether the second result will be used.
    """
    kept = target != loss.ignore_index
    _check_classes(target, kept, loss)
    count = logits.shape[-1]
    local = target - loss.start
    own = kept & (local >= 0) & (local < count)
    near = torch.where(kept, local.clamp(0, count - 1), -1)
    _, lse, unit = torch.ops.fusewheel.cross_entropy(
        logits, near, None, -1, 0.0, 0.0, loss.softcap, needs_grad
    )
    near = near.clamp(min=0).unsqueeze(-1)
    z = loss.capped(logits.gather(-1, near)).squeeze(-1)
    w = loss.own_weights(logits)

    peak = lse.clone()
    dist.all_reduce(peak, dist.ReduceOp.MAX, loss.group)
    smoothing = loss.label_smoothing > 0
    sums = torch.stack(
        (
            (lse - peak).exp(),
            torch.where(own, z - peak, 0.0),
            loss.capped(logits) @ w if smoothing else torch.zeros_like(peak),
        )
    )
    dist.all_reduce(sums, dist.ReduceOp.SUM, loss.group)
    log_sum = sums[0].log()
    total = peak + log_sum

    all_weights = float(loss.classes) if loss.weight is None else loss.weight.sum()
    of_target = 1.0 if loss.weight is None else loss.weight[torch.where(kept, target, 0)]
    share = (1 - loss.label_smoothing) * of_target
    class_share = loss.label_smoothing / loss.classes
    value = share * (log_sum - sums[1]) + loss.z_loss * total.square()
    if smoothing:
        value = value + class_share * (all_weights * total - sums[2])

    slope_share = class_share * all_weights + 2 * loss.z_loss * total
    pull = share + slope_share
    p = (z - total).exp()
    # Close to a probability of one the difference is all there is.
    at_target = torch.where(own, share * torch.expm1(z - total), share * p)
    element = (at_target + p * slope_share - class_share * w[near.squeeze(-1)]) * loss.slope(z)
    rows = Rows(
        unit,
        near,
        torch.where(kept, (lse - total).exp() * pull, 0.0),
        torch.where(kept, element, 0.0),
        kept.to(total.dtype) * class_share,
    )
    return torch.where(kept, value, 0.0), rows


def logits_gradient(grad: Tensor, logits: Tensor, rows: Rows, loss: Loss) -> Tensor:
    """The gradient of this process's logits, given that of the loss of each row."""
    found: Tensor = torch.ops.fusewheel.cross_entropy_backward(grad * rows.factor, rows.unit)
    if loss.label_smoothing > 0:
        taken = loss.own_weights(logits) * loss.slope(loss.capped(logits))
        found = (wide(found) - (grad * rows.smoothed).unsqueeze(-1) * taken).to(logits.dtype)
    element = (grad * rows.element).to(logits.dtype)
    return found.scatter_(-1, rows.near, element.unsqueeze(-1))


def _check_classes(target: Tensor, kept: Tensor, loss: Loss) -> None:
    # On a GPU the check would wait for it.
    if target.device.type == "cpu":
        bad = target[kept & ((target < 0) | (target >= loss.classes))]
        if bad.numel() > 0:
            raise RuntimeError(
                f"cross_entropy: target must be a class from 0 to {loss.classes - 1} or "
                f"ignore_index, got {int(bad[0])}"
            )


def divisor(target: Tensor, loss: Loss) -> Tensor:
    """What the mean divides by: the sum of the weights of the targets that are not ignored."""
    kept = target != loss.ignore_index
    if loss.weight is None:
        return kept.sum()
    return (loss.weight[torch.where(kept, target, 0)] * kept).sum()
