"""Cross entropy of a linear layer's output, which never exists as a whole"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel import _linear_cross_entropy as inputs
from fusewheel._operator import Arguments, Operator
from fusewheel._register import reference_gradients
from fusewheel._rows import compute_dtype, wide
from fusewheel._sharding import Layout, row_wise
from fusewheel.ops.cross_entropy import check_reduction, mean_of
from fusewheel.ops.cross_entropy import reference as cross_entropy_reference


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """`cross_entropy(x @ weight.T + bias, target)` without the logits of more than a few rows.

    The logits of a chunk of rows are computed, then their loss, its gradient in their place, and at
    once what that gives to the gradients of `x`, `weight` and `bias`: three products per chunk, and
    nothing of the size of all logits. The backward pass scales these gradients. With the reduction
    `"none"`, where the scale of each row is only known then, it computes the logits once more.

    The logits and their gradient are rounded to the dtype of `x`, as by a linear layer; on a CPU
    that does not multiply in that dtype they stay in float32. The gradients of `weight` and `bias`
    are summed in float32 at least, and kept so until they are scaled.

    Second derivatives, the gradient of `class_weight`, and everything under `torch.func`, are those
    of the formula in PyTorch operators, with all logits in memory.

    Source: the options are those of `cross_entropy`; Wijmans et al., "Cut Your Losses in
    Large-Vocabulary Language Models" (2024), and Hsu et al., "Liger Kernel" (2024), for never
    holding all logits.

    Args:
        x: `[..., D]`; float32, bfloat16, float16 or float64.
        weight: `[C, D]`, dtype and device of `x`.
        target: int64 `[...]`, classes from 0 to C - 1 or `ignore_index`.
        bias: `[C]`, likewise; none by default.
        class_weight: `[C]`, likewise, the factor of each class; ones by default.
        ignore_index: rows of this target have no loss and no gradient.
        reduction: `"none"`, `"sum"`, or `"mean"`: the sum divided by that of `class_weight[t]` over
            the rows which are not ignored. Without any such row the mean is NaN.
        label_smoothing: from 0 to 1, the share of the target that all classes divide.
        z_loss: how much of `logsumexp ** 2` is added; `class_weight` does not apply to it.
        softcap: the logits become `softcap * tanh(logits / softcap)`; 0 for no cap.

    Returns:
        The loss in the dtype of `x`, summed in float32 at least: `[...]`, or a scalar.

    Raises:
        ValueError: `reduction` is not one of the three, or the shape of `target` not that of `x`
            without its last dimension.
        RuntimeError: another dtype, shape or device than expected; `label_smoothing` or `softcap`
            out of range; a target that is no class, on the CPU. On CUDA the loss of such a row is
            NaN, and so are all gradients it has a part in.
    """
    check_reduction("linear_cross_entropy", reduction)
    if target.shape != x.shape[:-1]:
        raise ValueError(
            f"linear_cross_entropy: target must have shape {list(x.shape[:-1])} (all but the last "
            f"dimension of x), got {list(target.shape)}"
        )
    rows = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)
    classes = target.flatten()
    summed = reduction != "none"
    # The gradient of a sum does not depend on what comes; that of single losses does.
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
    _check_shapes(x, weight, target)
    loss = x.new_empty(() if settings[-4] else x.shape[:1], dtype=compute_dtype(x))
    return loss, *_fake_gradients(x, weight, settings[-3:])


def _check_shapes(x: Tensor, weight: Tensor, target: Tensor) -> None:
    op = "linear_cross_entropy"
    torch._check(x.dim() == 2, lambda: f"{op}: x must have shape [rows, in features]")
    torch._check(
        weight.dim() == 2 and weight.shape[1] == x.shape[1],
        lambda: f"{op}: weight must have shape [classes, {x.shape[1]}], got {list(weight.shape)}",
    )
    torch._check(
        target.shape == x.shape[:1],
        lambda: f"{op}: target must have shape {list(x.shape[:1])}, got {list(target.shape)}",
    )


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
    """`unit * grad`, written over `unit`, as large as the weight maybe, if it is not used again."""
    functorch = torch._C._functorch
    final = (
        not torch.compiler.is_compiling()  # which cannot look at the rest
        and type(unit) is Tensor
        and not torch.is_grad_enabled()
        and not functorch.is_batchedtensor(grad)
        and not functorch.is_legacy_batchedtensor(grad)
        and not torch._C._autograd._get_current_graph_task_keep_graph()
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
    # Of a row that is ignored, whatever its gradient is.
    grad = torch.where(target != settings[0], grad, 0.0)
    grad_logits = (grad.unsqueeze(-1) * wide(unit)).to(x.dtype)
    return _gradients(x, weight, grad_logits, needs)


def _backward_fake(
    grad: Tensor, x: Tensor, weight: Tensor, target: Tensor, *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _check_shapes(x, weight, target)
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
        auxiliary=(1, 2, 3),
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
