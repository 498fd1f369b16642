"""Cross entropy of rows of logits whose classes are spread over the processes of a group.

Each process runs the fused operator on its own classes, as if there were no others. If it does not
have the target, it uses one of its own classes instead. The result is then wrong by one factor for
each row (in the probabilities) and in one element for each row (at the target). Exchanging three
numbers for each row corrects both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fusewheel.ops._rows import wide


@dataclass(frozen=True)
class VocabularyLoss:
    """The options of `fusewheel.cross_entropy`, and the classes of this process.

    Attributes:
        op: the name of the function that errors are about.
        group: the processes that have the classes, in the order of the classes.
        start: the first class of this process.
        classes: the number of classes of all processes.
        weight: the factor of each class, in the dtype of computation; None for ones.
    """

    op: str
    group: dist.ProcessGroup
    start: int
    classes: int
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float

    def capped(self, logits: Tensor) -> Tensor:
        """The logits after the soft cap, in the dtype of computation."""
        z = wide(logits)
        return self.softcap * torch.tanh(z / self.softcap) if self.softcap > 0 else z

    def slope(self, z: Tensor) -> Tensor:
        """The derivative of the soft cap, given its result `z`."""
        return 1 - (z / self.softcap).square() if self.softcap > 0 else torch.ones_like(z)

    def own_weights(self, logits: Tensor) -> Tensor:
        """The factors of the classes of this process."""
        count = logits.shape[-1]
        if self.weight is None:
            return wide(logits.new_ones(count))
        return self.weight[self.start : self.start + count]


@dataclass(frozen=True)
class Rows:
    """The parts of the gradient of some rows, beside their logits.

    Attributes:
        near: for each row, the class of this process that is used for the target; -1 in rows that
            are ignored.
        factor: for each row, the factor of the gradient on this process's classes.
        element: for each row, the gradient at `near`.
        smoothed: the part of label smoothing for each class, without its factor.
    """

    near: Tensor
    factor: Tensor
    element: Tensor
    smoothed: Tensor


def rows_of(logits: Tensor, target: Tensor, loss: VocabularyLoss) -> tuple[Tensor, Rows]:
    """The loss `[N]` of rows of this process's logits `[N, own classes]`, and its gradient's parts.

    Args:
        logits: the logits of this process.
        target: int64 `[N]`, the same in all processes.
        loss: the options.
    """
    kept = target != loss.ignore_index
    _check_classes(target, kept, loss)
    count = logits.shape[-1]
    local = target - loss.start
    own = kept & (local >= 0) & (local < count)
    near = torch.where(kept, local.clamp(0, count - 1), -1)
    _, lse, _ = torch.ops.fusewheel.cross_entropy(logits, near, *_plain(loss), False)
    at = near.clamp(min=0)
    z = loss.capped(logits.gather(-1, at.unsqueeze(-1))).squeeze(-1)
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

    of_target = 1.0 if loss.weight is None else loss.weight[torch.where(kept, target, 0)]
    share = (1 - loss.label_smoothing) * of_target
    class_share = loss.label_smoothing / loss.classes
    value = share * (log_sum - sums[1]) + loss.z_loss * total.square()
    slope_share = 2 * loss.z_loss * total
    # Without label smoothing a row reads the weight of its target only: others may be NaN.
    if smoothing:
        all_weights = float(loss.classes) if loss.weight is None else loss.weight.sum()
        value = value + class_share * (all_weights * total - sums[2])
        slope_share = slope_share + class_share * all_weights
    pull = share + slope_share
    p = (z - total).exp()
    # Near a probability of 1 this difference is small, and computing it this way keeps its digits.
    at_target = torch.where(own, share * torch.expm1(z - total), share * p)
    element = at_target + p * slope_share
    if smoothing:
        element = element - class_share * w[at]
    element = element * loss.slope(z)
    rows = Rows(
        near,
        torch.where(kept, (lse - total).exp() * pull, 0.0),
        torch.where(kept, element, 0.0),
        kept.to(total.dtype) * class_share,
    )
    return torch.where(kept, value, 0.0), rows


def logits_gradient(grad: Tensor, logits: Tensor, rows: Rows, loss: VocabularyLoss) -> Tensor:
    """The gradient of this process's logits, given the gradient of each row's loss."""
    found: Tensor = torch.ops.fusewheel.cross_entropy(
        logits, rows.near, *_plain(loss), True, grad * rows.factor
    )[2]
    if loss.label_smoothing > 0:
        taken = loss.own_weights(logits) * loss.slope(loss.capped(logits))
        found = (wide(found) - (grad * rows.smoothed).unsqueeze(-1) * taken).to(logits.dtype)
    element = (grad * rows.element).to(logits.dtype)
    return found.scatter_(-1, rows.near.clamp(min=0).unsqueeze(-1), element.unsqueeze(-1))


def _plain(loss: VocabularyLoss) -> tuple[Any, ...]:
    """The options of the operator on this process's classes: the others are added to its result."""
    return None, -1, 0.0, 0.0, loss.softcap


def _check_classes(target: Tensor, kept: Tensor, loss: VocabularyLoss) -> None:
    # On a GPU this check would have to wait for the GPU.
    if target.device.type == "cpu":
        bad = target[kept & ((target < 0) | (target >= loss.classes))]
        if bad.numel() > 0:
            raise RuntimeError(
                f"{loss.op}: target must be a class from 0 to {loss.classes - 1} or "
                f"ignore_index, got {int(bad[0])}"
            )


def divisor(target: Tensor, loss: VocabularyLoss) -> Tensor:
    """The divisor of the mean: the sum of the weights of the targets that are not ignored."""
    kept = target != loss.ignore_index
    if loss.weight is None:
        return kept.sum()
    return torch.where(kept, loss.weight[torch.where(kept, target, 0)], 0.0).sum()
