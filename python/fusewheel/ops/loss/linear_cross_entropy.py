"""Cross entropy of a linear layer's output, without materialising that output"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.autograd import graph_is_kept
from fusewheel._torch.functorch import is_batch, is_plain
from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments, Operator
from fusewheel.dispatch.sharding import Layout, row_wise
from fusewheel.ops._checks import check_statistic
from fusewheel.ops._not_tensors import with_type_errors
from fusewheel.ops._rows import compute_dtype, wide
from fusewheel.ops.choices import Reduction
from fusewheel.ops.loss import _linear_cross_entropy as inputs
from fusewheel.ops.loss._checks import check_linear_cross_entropy, check_target
from fusewheel.ops.loss.cross_entropy import check_reduction, mean_of
from fusewheel.ops.loss.cross_entropy import reference as cross_entropy_reference


@with_type_errors
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """`cross_entropy(x @ weight.T + bias, target)`, without materialising the full logits.
    `fusewheel.cross_entropy` has the formula of the loss.

    It works on chunks of rows: it computes their logits, their loss, the gradient of the logits in
    the same memory, and adds their part to the gradients of `x`, `weight` and `bias`. The backward
    scales these gradients. With the reduction `"none"` the scale of each row is known only in the
    backward, which computes the logits again.

    The logits and their gradient are rounded to the dtype of `x`, as in a linear layer; on a CPU
    without products in that dtype they stay in float32. The gradients of `weight` and `bias` are
    summed in float32 (float64 for float64) and rounded after they are scaled.

    Second derivatives, the gradient of `class_weight`, and everything under `torch.func` are
    computed by PyTorch operators, with all logits in memory.

    Source: `torch.nn.functional.linear` and `torch.nn.functional.cross_entropy`; Wijmans et al.,
    "Cut Your Losses in Large-Vocabulary Language Models" (2024), and Hsu et al., "Liger Kernel"
    (2024), for working on chunks.

    Args:
        x: `[..., D]`; float32, bfloat16, float16 or float64.
        weight: `[C, D]`, with the dtype and device of `x`.
        target: int64 `[...]`: classes from 0 to C - 1, or `ignore_index`.
        bias: `[C]`, with the dtype and device of `x`; default None.
        class_weight: `[C]`, the factor of each class, with the dtype and device of `x`; default
            None, which means ones.
        ignore_index: rows with this target have no loss and no gradient; default -100.
        reduction: `"mean"` (default), `"sum"` or `"none"`. The mean is the sum divided by the sum
            of `class_weight[t]` over the rows that are not ignored; it is NaN if all rows are
            ignored.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes;
            default 0.
        z_loss: the factor of `logsumexp ** 2`, to which `class_weight` does not apply; default 0.
        softcap: the logits become `softcap * tanh(logits / softcap)`; default 0, which means no
            cap.

    Returns:
        The loss in the dtype of `x`: `[...]` for `"none"`, else a scalar. Sums are float32 (float64
        for float64).

    Raises:
        ValueError: `reduction` is not one of the three.
        RuntimeError: a dtype, shape or device is not as above, `label_smoothing` or `softcap` is
            out of range, or, on a CPU, a target is not a class. On CUDA the loss of such a row is
            NaN, and so are the gradients that it contributes to.
    """
    check_reduction("linear_cross_entropy", reduction)
    shape = list(x.shape[:-1])
    check_target("linear_cross_entropy", target, shape, "all but the last dimension of x")
    rows = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)
    classes = target.flatten()
    summed = reduction != "none"
    # The gradients of a summed loss can be computed now and scaled in the backward; those of
    # single losses cannot.
    early = summed and torch.is_grad_enabled()
    loss: Tensor = torch.ops.fusewheel.linear_cross_entropy(
        rows,
        weight,
        classes,
        bias,
        class_weight,
        ignore_index,
        label_smoothing,
        z_loss,
        softcap,
        summed,
        early and x.requires_grad,
        early and weight.requires_grad,
        early and bias is not None and bias.requires_grad,
    )[0]
    if reduction == "mean":
        loss = mean_of(loss, classes, class_weight, ignore_index)
    return loss.to(x.dtype) if summed else loss.to(x.dtype).view(target.shape)


def _reference(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    class_weight: Tensor | None,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    summed, needs = settings[4], settings[5:]
    options = (*settings[:4], any(needs))
    logits = torch.nn.functional.linear(x, weight, bias)
    loss, _, unit = cross_entropy_reference(logits, target, class_weight, *options)
    return loss.sum() if summed else loss, *_gradients(x, weight, unit, needs)


def _gradients(
    x: Tensor, weight: Tensor, grad_logits: Tensor, needs: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = compute_dtype(x)
    return (
        grad_logits @ weight if needs[0] else x.new_empty(0),
        (grad_logits.T @ x).to(dtype) if needs[1] else x.new_empty(0, dtype=dtype),
        grad_logits.sum(0).to(dtype) if needs[2] else x.new_empty(0, dtype=dtype),
    )


def _fake_gradients(
    x: Tensor, weight: Tensor, needs: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = compute_dtype(x)
    return (
        x.new_empty(x.shape if needs[0] else 0),
        x.new_empty(weight.shape if needs[1] else 0, dtype=dtype),
        x.new_empty(weight.shape[:1] if needs[2] else 0, dtype=dtype),
    )


def _fake(
    x: Tensor, weight: Tensor, target: Tensor, *settings: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_linear_cross_entropy("linear_cross_entropy", x, weight, target, *settings[:-4])
    loss = x.new_empty(() if settings[-4] else x.shape[:1], dtype=compute_dtype(x))
    return loss, *_fake_gradients(x, weight, settings[-3:])


def _backward(
    needs: Sequence[bool],
    grads: Sequence[Tensor | None],
    arguments: Arguments,
    saved: Sequence[Tensor],
) -> list[Tensor | None]:
    grad_loss, *grad_units = grads
    # Second derivatives come here.
    if grad_loss is None or any(grad is not None for grad in grad_units):
        return reference_gradients(_reference, needs, grads, arguments)
    *given, summed, has_x, has_weight, has_bias = arguments
    x = given[0]
    wanted = (needs[0], needs[1], needs[3])
    early = zip((has_x, has_weight, has_bias), wanted, strict=True)
    found: list[Tensor | None] = [None] * len(arguments)
    if summed and all(has or not wants for has, wants in early):
        units = [_scaled(u, grad_loss) if w else u for u, w in zip(saved, wanted, strict=True)]
    else:
        rows = grad_loss.expand(x.shape[:1]) if summed else grad_loss
        units = torch.ops.fusewheel.linear_cross_entropy_backward(rows, *given, *wanted)
    for index, unit, wants in zip((0, 1, 3), units, wanted, strict=True):
        found[index] = unit.to(x.dtype) if wants else None
    if needs[4]:
        only = [i == 4 for i in range(len(arguments))]
        found[4] = reference_gradients(_reference, only, grads, arguments)[4]
    return found


def _scaled(unit: Tensor, grad: Tensor) -> Tensor:
    """`unit * grad`; in place if `unit`, which may be as large as the weight, is not used again."""
    final = (
        not torch.compiler.is_compiling()  # Dynamo cannot trace the following tests
        and is_plain(unit)
        and not torch.is_grad_enabled()
        and not is_batch(grad)
        and not graph_is_kept()
    )
    return unit.detach().mul_(grad) if final else unit * grad


def _backward_reference(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    class_weight: Tensor | None,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    options, needs = (*settings[:4], True), settings[4:]
    logits = torch.nn.functional.linear(x, weight, bias)
    unit = cross_entropy_reference(logits, target, class_weight, *options)[2]
    # An ignored row contributes nothing, even if its gradient is NaN.
    grad = torch.where(target != settings[0], grad, 0.0)
    grad_logits = (grad.unsqueeze(-1) * wide(unit)).to(x.dtype)
    return _gradients(x, weight, grad_logits, needs)


def _backward_fake(
    grad: Tensor, x: Tensor, weight: Tensor, target: Tensor, *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    op = "linear_cross_entropy_backward"
    check_linear_cross_entropy(op, x, weight, target, *settings[:-3])
    check_statistic(op, ("grad", grad), x)
    return _fake_gradients(x, weight, settings[-3:])


def _sharding(*arguments: Any) -> Iterator[Layout]:
    summed = arguments[-4]
    return row_wise((0, 2), ("sum" if summed else "rows", "rows", "sum", "sum"))(*arguments)


def _flops(x: Tensor, weight: Tensor, *rest: Any) -> int:
    # The logits, and the gradients of x and of the weight where they are wanted.
    return (1 + sum(rest[-3:-1])) * 2 * x.numel() * weight.shape[0]


def _backward_flops(grad: Tensor, *arguments: Any) -> int:
    return _flops(*arguments)


OPERATORS = (
    Operator(
        name="linear_cross_entropy",
        autocast="lower",
        flops=_flops,
        reference=_reference,
        fake=_fake,
        shapes=(
            "x[:0] if summed else x[:1]",
            "when(needs_x, x)",
            "when(needs_weight, weight)",
            "when(needs_bias, weight[:1])",
        ),
        backward=_backward,
        saves=(
            *("x", "weight", "target", "bias", "class_weight"),
            *("grad_x", "grad_weight", "grad_bias"),
        ),
        materialize_grads=False,
        products=True,
        sharding=_sharding,
        samples=inputs.samples,
        bad_inputs=inputs.bad_inputs,
        benchmarks=inputs.benchmarks,
        function=linear_cross_entropy,
    ),
    Operator(
        name="linear_cross_entropy_backward",
        flops=_backward_flops,
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("when(needs_x, x)", "when(needs_weight, weight)", "when(needs_bias, weight[:1])"),
        products=True,
        sharding=row_wise((0, 1, 3), ("rows", "sum", "sum")),
        samples=inputs.backward_samples,
        bad_inputs=inputs.backward_bad_inputs,
    ),
)
