"""What losses refuse, in the words of their kernels (`fusewheel/loss/cross_entropy.h`)."""

from __future__ import annotations

import torch
from torch import Tensor

from fusewheel.dispatch.promise import Argument, check_same_device, fail
from fusewheel.ops._checks import (
    check,
    check_columns,
    check_floating,
    check_matches,
    check_sizes,
    describe,
)


def check_target(op: str, target: Tensor, shape: list[int], reason: str) -> None:
    """Raises an error unless `target` has this shape. TorchScript and Dynamo compile it."""
    got = list(target.shape)
    if got != shape:
        raise RuntimeError(f"{op}: target must have shape {shape} ({reason}), got {got}")


def check_classes(op: str, target: Tensor, matrix: Argument) -> None:
    """Raises an error unless `target` has one class for each row of a matrix."""
    if target.dtype != torch.int64:
        fail(op, f"target must be int64, got {describe(target.dtype)}")
    check_same_device(op, ("target", target), matrix)
    reason = f"the rows of {matrix[0]}"
    check_sizes(op, ("target", target), matrix[1].shape[:-1], reason)


def check_cross_entropy(op: str, label_smoothing: float, softcap: float) -> None:
    """Raises an error if an option of a loss is out of range."""
    if not 0 <= label_smoothing <= 1:
        fail(op, f"label_smoothing must be between 0 and 1, got {label_smoothing:f}")
    if not softcap >= 0:
        fail(op, f"softcap must be positive, or 0 for none, got {softcap:f}")


def check_linear_cross_entropy(
    op: str,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    class_weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
) -> None:
    """Raises the errors of the kernels of linear_cross_entropy."""
    rows = "x", x
    check_two_dimensions(op, rows, "[rows, in features]")
    check_matches(op, ("weight", weight), rows)
    check_two_dimensions(op, ("weight", weight), "[classes, in features]")
    classes = weight.shape[0]
    reason = "classes, the input's last dimension"
    check_sizes(op, ("weight", weight), (classes, x.shape[1]), reason)
    message = f"weight must have at least one class, got shape {list(weight.shape)}"
    check(op, classes != 0, message)
    check_classes(op, target, rows)
    for name, values in (("bias", bias), ("class_weight", class_weight)):
        if values is not None:
            check_matches(op, (name, values), rows)
            check_sizes(op, (name, values), (classes,), "classes")
    check_cross_entropy(op, label_smoothing, softcap)


def check_two_dimensions(op: str, argument: Argument, shape: str) -> None:
    """Raises an error unless an argument is a floating matrix."""
    check_floating(op, argument)
    name, tensor = argument
    if tensor.dim() != 2:
        fail(op, f"{name} must have shape {shape}, got {list(tensor.shape)}")


def check_rows_of_logits(logits: Tensor, target: Tensor, weight: Tensor | None) -> None:
    """Raises the errors of the kernel of cross_entropy about its tensors."""
    op, matrix = "cross_entropy", ("logits", logits)
    check_floating(op, matrix)
    shape = list(logits.shape)
    message = f"logits must have shape [rows, classes] with at least one class, got {shape}"
    if logits.dim() != 2:
        fail(op, message)
    check(op, logits.shape[1] != 0, message)
    check_classes(op, target, matrix)
    check_columns(op, "weight", weight, matrix)
