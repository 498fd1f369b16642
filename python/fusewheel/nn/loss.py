"""Losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusewheel.ops.choices import Reduction
from fusewheel.ops.loss.cross_entropy import cross_entropy
from fusewheel.ops.loss.linear_cross_entropy import linear_cross_entropy


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` by `fusewheel.cross_entropy`, which has the formula.

    Source: `torch.nn.CrossEntropyLoss`.

    Args:
        weight: `[C]`, the factor of each class; default None.
        size_average: deprecated by PyTorch, default None.
        ignore_index: the class whose rows have no loss; default -100.
        reduce: deprecated by PyTorch, default None.
        reduction: `"mean"` (default), `"sum"` or `"none"`.
        label_smoothing: from 0 to 1; default 0.
        z_loss: the factor of the squared logsumexp; default 0. Only by its name.
        softcap: the largest magnitude of a logit; default 0, which means no cap. Only by its name.
    """

    reduction: Reduction

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
        softcap: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.z_loss = z_loss
        self.softcap = softcap

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Logits `[N, C, ...]` and classes or probabilities, to the loss."""
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            softcap=self.softcap,
        )


class LinearCrossEntropyLoss(torch.nn.Module):
    """A linear layer and its cross entropy by `fusewheel.linear_cross_entropy`: the full logits are
    never materialised.

    Arguments and state dictionary are those of `torch.nn.LinearCrossEntropyLoss`, which torch has
    since 2.13: `linear.weight`, `linear.bias` and `weight`. There is one loss for each row
    (`out_features` of that class is always empty), and targets are classes.

    Source: `torch.nn.LinearCrossEntropyLoss`.

    Args:
        in_features: the features of a row.
        num_classes: the number of classes.
        bias: whether the linear layer has a bias; default False.
        device: of the linear layer; default None, which means torch's default.
        dtype: of the linear layer; default None, which means torch's default.
        reduction: `"mean"` (default), `"sum"` or `"none"`.
        weight: `[C]`, the factor of each class; default None.
        ignore_index: the class whose rows have no loss; default None, which means -100.
        label_smoothing: from 0 to 1; default 0.
        z_loss: the factor of the squared logsumexp; default 0.
        softcap: the largest magnitude of a logit; default 0, which means no cap.

    Raises:
        ValueError: `weight` has another shape than `[num_classes]`.
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        reduction: Reduction = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
    ) -> None:
        super().__init__()
        if weight is not None and weight.shape != (num_classes,):
            raise ValueError(
                f"LinearCrossEntropyLoss: weight must have shape [{num_classes}] (num_classes), "
                f"got {list(weight.shape)}"
            )
        self.linear = torch.nn.Linear(in_features, num_classes, bias, device, dtype)
        self.register_buffer("weight", weight)
        self.reduction = reduction
        self.ignore_index = -100 if ignore_index is None else ignore_index
        self.label_smoothing = label_smoothing
        self.z_loss = z_loss
        self.softcap = softcap

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Rows `[..., in_features]` and classes `[...]`, to the loss."""
        options: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("ignore_index", "reduction", "label_smoothing", "z_loss", "softcap")
        }
        return linear_cross_entropy(
            input,
            self.linear.weight,
            target,
            bias=self.linear.bias,
            class_weight=self.weight,
            **options,
        )

    def extra_repr(self) -> str:
        """The text that `print` shows for the layer."""
        return f"reduction={self.reduction}, ignore_index={self.ignore_index}"
