"""-log(softmax(logits)) at the target class"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._operator import Arguments, BadInput, Make, Operator
from fusewheel._register import reference_gradients
from fusewheel._rows import compute_dtype, wide
from fusewheel._sharding import REPLICATE, Layout, row_wise


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> Tensor:
    """Cross entropy of rows of logits and their classes, `torch.nn.functional.cross_entropy` with a
    z-loss and a soft cap of the logits.

    With `z = softcap * tanh(logits / softcap)` (or the logits themselves where `softcap` is 0),
    `lse = logsumexp(z)`, `C` classes, `w = weight`, a row of target `t` has the loss
    `(1 - label_smoothing) * w[t] * (lse - z[t]) + label_smoothing / C * sum(w * (lse - z))
    + z_loss * lse ** 2`.

    The gradient of the logits is computed together with the loss, in the dtype of the logits, and
    scaled in the backward pass. It is there if gradients are enabled and `logits.requires_grad`.
    Second derivatives, and the gradient of `weight`, are those of the formula in PyTorch operators.

    Source: Szegedy et al., "Rethinking the Inception Architecture" (2015) for label smoothing;
    de Brebisson and Vincent, "The Z-loss" (2016), in the form of PaLM (2022); Gemma 2 (2024) for
    the soft cap.

    Args:
        logits: `[N, C]`; float32, bfloat16, float16 or float64.
        target: int64 `[N]`, classes from 0 to C - 1 or `ignore_index`. Or probabilities, of shape
            and dtype of `logits`: PyTorch's own function then runs, which has no z-loss and no cap.
        weight: `[C]`, dtype and device of `logits`, or None for ones.
        ignore_index: rows of this target have no loss and no gradient; their logits are not read.
        reduction: `"none"`, `"sum"`, or `"mean"`: the sum divided by that of `w[t]` over the rows
            which are not ignored. Without any such row the mean is NaN.
        label_smoothing: from 0 to 1, the share of the target that all classes divide.
        z_loss: how much of `lse ** 2` is added; `weight` does not apply to it.
        softcap: the largest magnitude of `z`, in the units of the logits; 0 for no cap.

    Returns:
        The loss in the dtype of `logits`, summed in float32 at least: `[N]`, or a scalar.

    Raises:
        ValueError: `reduction` is not one of the three; probabilities with a z-loss or a cap.
        RuntimeError: another dtype, shape or device than expected; `label_smoothing` or `softcap`
            out of range; a target that is no class, on the CPU. On CUDA the loss and the gradient
            of such a row are NaN.
    """
    check_reduction("cross_entropy", reduction)
    if target.is_floating_point():
        if z_loss != 0.0 or softcap != 0.0:
            raise ValueError(
                "cross_entropy: z_loss and softcap must be 0 where target holds probabilities, "
                f"got {z_loss} and {softcap}"
            )
        return torch.nn.functional.cross_entropy(
            logits,
            target,
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
    needs_grad = torch.is_grad_enabled() and logits.requires_grad
    loss: Tensor = torch.ops.fusewheel.cross_entropy(
        logits, target, weight, ignore_index, label_smoothing, z_loss, softcap, needs_grad
    )[0]
    if reduction != "none":
        loss = loss.sum()
    if reduction == "mean":
        loss = mean_of(loss, target, weight, ignore_index)
    return loss.to(logits.dtype)


def check_reduction(op: str, reduction: str) -> None:
    """Refuses an unknown one."""
    if reduction != "mean" and reduction != "sum" and reduction != "none":
        raise ValueError(f"{op}: reduction must be 'none', 'mean' or 'sum', got '{reduction}'")


def mean_of(total: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """`total` divided by the sum of `weight[t]` over the rows that are not ignored.

    Without any it is NaN, and its gradient zero.
    """
    kept = target != ignore_index
    if weight is None:
        divisor = kept.sum()
    else:
        own = weight.index_select(0, target.clamp(0, weight.size(0) - 1))
        divisor = (own.to(total.dtype) * kept).sum()
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
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator's results, in PyTorch operators."""
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
    grad = logits.new_empty(0)
    if needs_grad:
        own = torch.arange(classes, device=target.device) == index
        pull = share + class_share * w.sum() + 2.0 * z_loss * lse
        slope = log_p.exp() * pull - class_share * w - torch.where(own, share, 0.0)
        if softcap > 0:
            slope = slope * (1 - (z / softcap).square())
        grad = torch.where(kept.unsqueeze(-1), slope, 0.0).to(logits.dtype)
    loss, lse = (torch.where(kept, t.squeeze(-1), 0.0) for t in (loss, lse))
    return loss, lse, grad


def _fake(
    logits: Tensor, target: Tensor, weight: Tensor | None, *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    needs_grad = settings[-1]
    torch._check(logits.dim() == 2, lambda: "cross_entropy: logits must have shape [rows, classes]")
    torch._check(
        target.shape == logits.shape[:1],
        lambda: (
            f"cross_entropy: target must have shape {list(logits.shape[:1])}, "
            f"got {list(target.shape)}"
        ),
    )
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
    *_, needs_grad = arguments
    if needs_grad and grad_loss is not None and grad_lse is None and grad_grad is None:
        grad_logits = torch.ops.fusewheel.cross_entropy_backward(grad_loss, saved[0])
        found: list[Tensor | None] = [grad_logits, *[None] * (len(arguments) - 1)]
        if needs[2]:
            only_weight = [i == 2 for i in range(len(arguments))]
            found[2] = reference_gradients(reference, only_weight, grads, arguments)[2]
        return found
    # Second derivatives, and whoever wants more than the loss or has not said that he wants its
    # gradient, come here. The parts are added before they are rounded.
    return reference_gradients(reference, needs, grads, arguments)


def random_classes(make: Make, rows: int, classes: int, ignored: Sequence[int] = ()) -> Tensor:
    """Targets for samples; the rows in `ignored` have -100."""
    generator = torch.Generator().manual_seed(rows)
    target = torch.randint(classes, (rows,), generator=generator)
    target[list(ignored)] = -100
    return target.to(make.device)


def _samples(make: Make) -> Iterator[Arguments]:
    def call(logits: Tensor, *settings: Any, ignored: Sequence[int] = ()) -> Arguments:
        rows, classes = logits.shape
        return logits, random_classes(make, rows, classes, ignored), *settings

    yield call(make(5, 7), None, -100, 0.0, 0.0, 0.0, True)
    yield call(make(4, 9), make(9), -100, 0.1, 0.01, 2.0, True, ignored=(1, 3))
    yield call(make(3, 507), None, -100, 0.1, 0.0, 0.0, True, ignored=(2,))
    yield call(make(33, 1024, scale=5.0), None, -100, 0.0, 1e-4, 30.0, True)
    yield call(make(6, 5), make(5), -100, 0.0, 0.1, 0.0, False)
    yield call(make.strided(4, 19), make.strided(19), -100, 0.2, 0.0, 0.0, True, ignored=(3,))
    yield call(make.transposed(9, 8), None, -100, 0.0, 0.0, 1.0, True)
    yield call(make(4, 130)[:, 2:], None, -100, 0.0, 0.0, 0.0, True)
    yield call(make(3, 1), None, -100, 0.0, 0.0, 0.0, True)
    yield call(make(0, 6), None, -100, 0.0, 0.0, 0.0, True)
    yield make(3, 4), torch.tensor([1, 2, 0], device=make.device), None, 2, 0.0, 0.0, 0.0, True
    yield call(make(3, 50, scale=1e3), None, -100, 0.1, 0.0, 0.0, True)


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in ((256, 32000), (1024, 49152), (256, 128256), (128, 151936)):
        target = random_classes(make, rows, size)
        yield f"{rows}x{size}", (make(rows, size), target)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x, target, rest = make(4, 8), random_classes(make, 4, 8), (-100, 0.0, 0.0, 0.0, True)
    yield BadInput((x.to(torch.int32), target, None, *rest), "logits must be float32.*got int32")
    yield BadInput(
        (make(2, 2, 2), target, None, *rest), r"logits must have shape \[rows, classes\]"
    )
    yield BadInput((make(4, 0), target, None, *rest), "at least one class")
    yield BadInput((x, target.to(torch.int32), None, *rest), "target must be int64, got int32")
    yield BadInput((x, target[:3], None, *rest), r"target must have shape \[4\].*got \[3\]")
    yield BadInput((x, target, make(7), *rest), r"weight must have shape \[8\].*got \[7\]")
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((x, target, make(8).to(other), *rest), "weight must have the dtype of logits")
    for smoothing in (-0.1, 1.1, float("nan")):
        bad = (x, target, None, -100, smoothing, 0.0, 0.0, True)
        yield BadInput(bad, "label_smoothing must be between 0 and 1")
    bad = (x, target, None, -100, 0.0, 0.0, -1.0, True)
    yield BadInput(bad, "softcap must be positive, or 0")
    yield BadInput((None, target, None, *rest), r"logits\b.*(None|NoneType)")
    yield BadInput((x, None, None, *rest), r"target\b.*(None|NoneType)")
    if x.dtype == torch.float32:
        yield BadInput((x.to_sparse(), target, None, *rest), "logits must be a dense tensor")


def _backward_reference(grad: Tensor, grad_logits: Tensor) -> Tensor:
    return (grad.unsqueeze(-1) * wide(grad_logits)).to(grad_logits.dtype)


def _backward_fake(grad: Tensor, grad_logits: Tensor) -> Tensor:
    message = "cross_entropy_backward: grad_logits must have shape [rows, classes]"
    torch._check(grad_logits.dim() == 2, lambda: message)
    return grad_logits.new_empty(grad_logits.shape)


def _backward_sharding(grad: Tensor, grad_logits: Tensor) -> Iterator[Layout]:
    yield from row_wise((0, 1), ("rows",))(grad, grad_logits)
    yield Layout((REPLICATE, 1), (1,))


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for x in (make(5, 7), make(3, 507), make.strided(4, 19), make.transposed(3, 8), make(0, 6)):
        yield wide(make(x.shape[0]).detach()), x
    yield wide(make(1).detach()).expand(4), make(4, 9)


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    x = make(4, 8)
    row = wide(make(4))
    yield BadInput((row[:3], x), r"grad must have shape \[4\]")
    yield BadInput((row.to(torch.bfloat16), x), "grad must be float")
    yield BadInput((row, row), r"grad_logits must have shape \[rows, classes\]")


OPERATORS = (
    Operator(
        name="cross_entropy",
        reference=reference,
        fake=_fake,
        shapes=("logits[:1]", "logits[:1]", "when(needs_grad, logits)"),
        backward=_backward,
        auxiliary=(2,),
        materialize_grads=False,
        sharding=row_wise((0, 1), ("rows", "rows", "rows")),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=cross_entropy,
        rival=torch.nn.functional.cross_entropy,
    ),
    Operator(
        name="cross_entropy_backward",
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("grad_logits",),
        sharding=_backward_sharding,
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)
