"""-log(softmax(logits)) at the target class"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments, Operator
from fusewheel.dispatch.sharding import REPLICATE, Layout, row_wise
from fusewheel.ops._checks import check_statistic
from fusewheel.ops._drop_in import drop_in
from fusewheel.ops._rows import compute_dtype, wide
from fusewheel.ops.choices import Reduction
from fusewheel.ops.loss import _cross_entropy as inputs
from fusewheel.ops.loss._checks import (
    check_cross_entropy,
    check_rows_of_logits,
    check_target,
    check_two_dimensions,
)


def _scripted(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """`cross_entropy` for TorchScript, which knows no keyword-only arguments."""
    reduction = reduction_of(size_average, reduce, reduction)
    check_reduction("cross_entropy", reduction)
    if target.is_floating_point():
        if z_loss != 0.0 or softcap != 0.0:
            raise ValueError(
                "cross_entropy: z_loss and softcap must be 0 where target holds probabilities, "
                f"got {z_loss} and {softcap}"
            )
        return torch.nn.functional.cross_entropy(
            input,
            target,
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
    if target.dtype == torch.uint8:
        target = target.long()
    rows, classes = _rows_of(input, target)
    loss: Tensor = torch.ops.fusewheel.cross_entropy(
        rows, classes, weight, ignore_index, label_smoothing, z_loss, softcap, False
    )[0]
    if reduction == "none":
        return loss.to(input.dtype).view(target.shape)
    loss = loss.sum()
    if reduction == "mean":
        loss = mean_of(loss, classes, weight, ignore_index)
    return loss.to(input.dtype)


def _former(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """The function with its former arguments."""
    options = None, reduction, label_smoothing, z_loss, softcap
    return _scripted(logits, target, weight, None, ignore_index, *options)


def _is_former(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    # In the place of `ignore_index` PyTorch has `size_average`, a bool.
    return "logits" in kwargs or (len(args) > 3 and type(args[3]) is int)


@drop_in("cross_entropy", {"logits": "input"}, _former, _is_former, _scripted)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """Cross entropy of logits and classes, as `torch.nn.functional.cross_entropy`, with a z-loss
    and a soft cap of the logits.

    Let `z = softcap * tanh(input / softcap)`, or `input` itself if `softcap` is 0,
    `lse = logsumexp(z)` over the `C` classes, and `w = weight`. A row with target `t` has the loss
    `(1 - label_smoothing) * w[t] * (lse - z[t]) + label_smoothing / C * sum(w * (lse - z))
    + z_loss * lse ** 2`.

    The backward computes the gradient of the logits from the logits and rounds it once. It keeps no
    other tensor of the size of the logits in memory. Second derivatives and the gradient of
    `weight` are computed by PyTorch operators.

    Source: `torch.nn.functional.cross_entropy`; Szegedy et al., "Rethinking the Inception
    Architecture" (2015) for label smoothing; de Brebisson and Vincent, "The Z-loss" (2016), in the
    form of PaLM (2022); Gemma 2 (2024) for the soft cap.

    Args:
        input: `[N, C]`, `[N, C, d1, ...]` or `[C]`; float32, bfloat16, float16 or float64.
        target: int64 or uint8 `[N]`, `[N, d1, ...]` or `[]`: classes from 0 to C - 1, or
            `ignore_index`. Or class probabilities with the shape and dtype of `input`; then
            PyTorch's function runs, which has no z-loss and no soft cap.
        weight: `[C]`, the factor of each class, with the dtype and device of `input`; default
            None, which means ones.
        size_average: deprecated by PyTorch, default None. If it or `reduce` is given, `reduction`
            is ignored: False means `"sum"`.
        ignore_index: rows with this target have no loss and no gradient, and their logits are not
            read; default -100.
        reduce: deprecated by PyTorch, default None. False means the reduction `"none"`.
        reduction: `"mean"` (default), `"sum"` or `"none"`. The mean is the sum divided by the sum
            of `w[t]` over the rows that are not ignored; it is NaN if all rows are ignored.
        label_smoothing: from 0 to 1, the share of the target that is spread over all classes;
            default 0.
        z_loss: the factor of `lse ** 2`, to which `weight` does not apply; default 0. Only by its
            name.
        softcap: the largest magnitude of `z`; default 0, which means no cap. Only by its name.

    Returns:
        The loss in the dtype of `input`: the shape of the classes for `"none"`, else a scalar.
        Sums are float32 (float64 for float64).

    Raises:
        ValueError: `reduction` is not one of the three; probabilities with a z-loss or a soft cap.
        RuntimeError: a dtype, shape or device is not as above, `label_smoothing` or `softcap` is
            out of range, or, on a CPU, a target is not a class. On CUDA the loss and the gradient
            of such a row are NaN.
    """
    options = ignore_index, reduce, reduction, label_smoothing, z_loss, softcap
    return _scripted(input, target, weight, size_average, *options)


def _rows_of(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of any shape as a matrix with a column for each class, and the classes of its rows."""
    if logits.dim() == 2 or logits.dim() == 0:  # the operator refuses no dimension
        return logits, target
    if logits.dim() == 1:
        check_target("cross_entropy", target, [], "logits without the classes")
        return logits.unsqueeze(0), target.unsqueeze(0)
    shape = list(logits.shape[:1]) + list(logits.shape[2:])
    check_target("cross_entropy", target, shape, "logits without dimension 1, the classes")
    return logits.movedim(1, -1).flatten(0, -2), target.flatten()


def reduction_of(size_average: bool | None, reduce: bool | None, reduction: Reduction) -> Reduction:
    """The reduction that PyTorch's former arguments mean, where one of them is given."""
    if size_average is None and reduce is None:
        return reduction
    if reduce is not None and not reduce:
        return "none"
    return "sum" if size_average is not None and not size_average else "mean"


def check_reduction(op: str, reduction: str) -> None:
    """Raises ValueError for an unknown reduction."""
    if reduction != "mean" and reduction != "sum" and reduction != "none":
        raise ValueError(f"{op}: reduction must be 'none', 'mean' or 'sum', got '{reduction}'")


def mean_of(total: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """`total` divided by the sum of `weight[t]` over the rows that are not ignored.

    If all rows are ignored, the result is NaN and its gradient is zero.
    """
    kept = target != ignore_index
    if weight is None:
        divisor = kept.sum()
    else:
        own = weight.index_select(0, target.clamp(0, weight.size(0) - 1))
        divisor = torch.where(kept, own.to(total.dtype), 0.0).sum()
    some = kept.any()
    return torch.where(some, total / torch.where(some, divisor, 1), float("nan"))


def reference(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    needs_grad: bool,
    grad: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator's results, in PyTorch operators.

    The third one is the gradient of the logits if `needs_grad`, and empty if not. `grad` is what
    the loss of each row counts for in it, 1 by default.
    """
    z = wide(logits)
    if softcap > 0:
        z = softcap * torch.tanh(z / softcap)
    classes = z.shape[-1]
    kept = target != ignore_index
    index = torch.where(kept, target, 0).unsqueeze(-1)
    w = z.new_ones(classes) if weight is None else wide(weight)
    share = (1 - label_smoothing) * w[index]
    class_share = label_smoothing / classes
    peak = z.detach().amax(-1, keepdim=True)
    log_sum = (z - peak).exp().sum(-1, keepdim=True).log()
    lse = peak + log_sum
    log_p = (z - peak) - log_sum
    loss = -share * log_p.gather(-1, index)
    if label_smoothing > 0:
        loss = loss - class_share * (log_p * w).sum(-1, keepdim=True)
    if z_loss != 0:
        loss = loss + z_loss * lse.square()
    grad_logits = logits.new_empty(0)
    if needs_grad:
        own = torch.arange(classes, device=target.device) == index
        # Without smoothing a class counts only where it is the target: its weight may be NaN.
        spread = w if label_smoothing > 0 else torch.zeros_like(w)
        pull = share + class_share * spread.sum() + 2.0 * z_loss * lse
        slope = log_p.exp() * pull - class_share * spread - torch.where(own, share, 0.0)
        if softcap > 0:
            slope = slope * (1 - (z / softcap).square())
        if grad is not None:
            slope = slope * grad.unsqueeze(-1)
        grad_logits = torch.where(kept.unsqueeze(-1), slope, 0.0).to(logits.dtype)
    loss, lse = (torch.where(kept, t.squeeze(-1), 0.0) for t in (loss, lse))
    return loss, lse, grad_logits


def _fake(
    logits: Tensor, target: Tensor, weight: Tensor | None, *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _, label_smoothing, _, softcap, needs_grad, grad = settings
    check_rows_of_logits(logits, target, weight)
    check_cross_entropy("cross_entropy", label_smoothing, softcap)
    if grad is not None:
        check_statistic("cross_entropy", ("grad", grad), logits)
    dtype = compute_dtype(logits)
    loss, lse = (logits.new_empty(logits.shape[:1], dtype=dtype) for _ in range(2))
    return loss, lse, logits.new_empty(logits.shape if needs_grad else 0)


def _backward(
    needs: Sequence[bool],
    grads: Sequence[Tensor | None],
    arguments: Arguments,
    saved: Sequence[Tensor],
) -> list[Tensor | None]:
    grad_loss, grad_lse, grad_grad = grads
    if grad_loss is None or grad_lse is not None or grad_grad is not None:
        # Second derivatives, and gradients of other results than the loss. The parts are added
        # before they are rounded.
        return reference_gradients(reference, needs, grads, arguments)
    found: list[Tensor | None] = [None] * len(arguments)
    if needs[0]:
        found[0] = torch.ops.fusewheel.cross_entropy(*arguments[:7], True, grad_loss)[2]
    if needs[2]:
        only_weight = [i == 2 for i in range(len(arguments))]
        found[2] = reference_gradients(reference, only_weight, grads, arguments)[2]
    return found


def _sharding(*arguments: Any) -> Iterator[Layout]:
    along = (0, 1) if arguments[8] is None else (0, 1, 8)
    return row_wise(along, ("rows", "rows", "rows"))(*arguments)


def _backward_reference(grad: Tensor, grad_logits: Tensor) -> Tensor:
    return (grad.unsqueeze(-1) * wide(grad_logits)).to(grad_logits.dtype)


def _backward_fake(grad: Tensor, grad_logits: Tensor) -> Tensor:
    op = "cross_entropy_backward"
    check_two_dimensions(op, ("grad_logits", grad_logits), "[rows, classes]")
    check_statistic(op, ("grad", grad), grad_logits)
    return grad_logits.new_empty(grad_logits.shape)


def _backward_sharding(grad: Tensor, grad_logits: Tensor) -> Iterator[Layout]:
    yield from row_wise((0, 1), ("rows",))(grad, grad_logits)
    yield Layout((REPLICATE, 1), (1,))


OPERATORS = (
    Operator(
        name="cross_entropy",
        reference=reference,
        fake=_fake,
        shapes=("logits[:1]", "logits[:1]", "when(needs_grad, logits)"),
        backward=_backward,
        materialize_grads=False,
        statistics=(8,),
        sharding=_sharding,
        samples=inputs.samples,
        bad_inputs=inputs.bad_inputs,
        benchmarks=inputs.benchmarks,
        function=cross_entropy,
        rival=torch.nn.functional.cross_entropy,
    ),
    Operator(
        name="cross_entropy_backward",
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("grad_logits",),
        saves={"grad": ("grad_logits",), "grad_logits": ("grad",)},
        sharding=_backward_sharding,
        samples=inputs.backward_samples,
        bad_inputs=inputs.backward_bad_inputs,
    ),
)
