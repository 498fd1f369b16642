"""x / sqrt(mean(x^2) + eps) * weight over the last dimension"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel._core.dtypes import accumulation_dtype
from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.promise import Argument, fail
from fusewheel.dispatch.sharding import row_wise
from fusewheel.dispatch.short import short_way
from fusewheel.ops._checks import check_columns, check_rows, check_same, check_statistic
from fusewheel.ops._drop_in import check_normalized, drop_in, is_last, is_mixture, sizes
from fusewheel.ops._elementwise import SIZES
from fusewheel.ops._rows import empty_statistic, wide
from fusewheel.ops.choices import Cast

LLAMA, GEMMA, TORCH = 0, 1, 2

# The default of `eps`, which `_prepared` spells out for TorchScript.
_EPS = {
    dtype: torch.finfo(accumulation_dtype(dtype)).eps
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
}


def _former(x: Tensor, weight: Tensor, eps: float = 1e-6, cast: Cast = "llama") -> Tensor:
    """The function with its former arguments."""
    y: Tensor = torch.ops.fusewheel.rms_norm(x, weight, eps, cast_number("rms_norm", cast))[0]
    return y


def _is_former(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if len(args) > 1:
        return isinstance(args[1], Tensor)
    return "x" in kwargs or ("weight" in kwargs and "normalized_shape" not in kwargs)


def _prepared(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    eps: float | None,
    cast: str,
) -> tuple[Tensor, Tensor, float, int]:
    """The arguments of the operator. TorchScript and Dynamo compile it."""
    number = cast_number("rms_norm", cast)
    check_normalized("rms_norm", input, normalized_shape, weight, None)
    if eps is None:
        eps = 2.220446049250313e-16 if input.dtype == torch.float64 else 1.1920928955078125e-07
    x = input if len(normalized_shape) == 1 else input.flatten(-len(normalized_shape))
    if weight is not None:
        factor = weight if len(normalized_shape) == 1 else weight.flatten()
    else:
        # What changes nothing: "gemma" adds 1.
        factor = torch.full(
            (x.size(-1),), 0.0 if number == 1 else 1.0, dtype=x.dtype, device=x.device
        )
    return x, factor, eps, number


def _scripted(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    cast: Cast = "torch",
) -> Tensor:
    """`rms_norm` for TorchScript, which knows no keyword-only arguments."""
    x, factor, epsilon, number = _prepared(input, normalized_shape, weight, eps, cast)
    y: Tensor = torch.ops.fusewheel.rms_norm(x, factor, epsilon, number)[0]
    return y if len(normalized_shape) == 1 else y.view_as(input)


_call = short_way("rms_norm")


def _short(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    cast: Cast = "torch",
) -> Tensor | None:
    if weight is None or not is_last(normalized_shape, weight, input):
        return None
    eps = _EPS[input.dtype] if eps is None else eps
    y: Tensor = _call(input, weight, eps, cast_number("rms_norm", cast))[0]
    return y


@drop_in("rms_norm", {"x": "input"}, _former, _is_former, _scripted, _short)
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    cast: Cast = "torch",
) -> Tensor:
    """Root-mean-square norm over the last dimensions: `input * rstd * weight` with
    `rstd = 1 / sqrt(mean(input ** 2) + eps)`.

    Models round at different places. `cast` says where:

    * `"torch"`: `input * rstd * weight` in float32, rounded once. OLMo-2 does this too.
    * `"llama"`: `input * rstd` in float32, rounded to the dtype of `input`, then times `weight` in
      that dtype.
    * `"gemma"`: `input * rstd * (1 + weight)` in float32, rounded once.

    In float32 and float64 `"llama"` and `"torch"` are the same. float64 is computed in float64.
    With `cast="torch"`, PyTorch's function computes complex numbers, and a `weight` of another
    floating dtype than `input`.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019);
    `torch.nn.functional.rms_norm`.

    Args:
        input: a shape that ends with `normalized_shape`; float32, bfloat16, float16 or float64.
        normalized_shape: the sizes of the last dimensions, over which the mean is taken; a number
            is the size of the last one.
        weight: has the shape `normalized_shape`, and the device of `input`; default None, which
            means that nothing is multiplied.
        eps: added to the mean square; default None, which means the difference between 1 and the
            next number, 1.2e-7 in float32 (bfloat16 and float16 are computed in it) and 2.2e-16 in
            float64.
        cast: `"torch"` (default), `"llama"` or `"gemma"`, see above. Only by its name.

    Returns:
        A contiguous tensor with the shape and dtype of `input`.

    Raises:
        ValueError: `cast` is not one of the three.
        RuntimeError: a dtype is not one of the four, devices differ, a shape is not as above, or a
            tensor is sparse.
    """
    shape = sizes("rms_norm", normalized_shape)
    if cast == "torch" and (input.is_complex() or is_mixture(input, weight)):
        return torch.nn.functional.rms_norm(input, shape, weight, eps)
    y: Tensor = _call(*_prepared(input, shape, weight, eps, cast))[0]
    return y if len(shape) == 1 else y.view_as(input)


def cast_number(op: str, cast: str) -> int:
    """The number by which the schema of `op` knows a `cast`."""
    if cast == "llama":
        return 0
    if cast == "gemma":
        return 1
    if cast == "torch":
        return 2
    raise ValueError(f"{op}: cast must be 'llama', 'gemma' or 'torch', got '{cast}'")


def reference(x: Tensor, weight: Tensor, eps: float, cast: int) -> tuple[Tensor, Tensor]:
    """The operator in PyTorch operators."""
    values = wide(x)
    rstd = torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
    if cast == LLAMA:
        y = weight * (values * rstd).to(x.dtype)
    elif cast == GEMMA:
        y = (values * rstd * (1 + wide(weight))).to(x.dtype)
    else:
        y = (values * rstd * wide(weight)).to(x.dtype)
    return y, rstd.squeeze(-1)


def check_rms_norm(op: str, x: Argument, weight: Tensor, cast: int) -> None:
    """Raises the errors of the kernel."""
    check_rows(op, x)
    check_columns(op, "weight", weight, x)
    if cast not in (LLAMA, GEMMA, TORCH):
        fail(op, f"cast must be 0 (llama), 1 (gemma) or 2 (torch), got {cast}")


def check_rms_norm_backward(
    op: str, grad: Tensor, x: Argument, weight: Tensor, rstd: Tensor, cast: int
) -> None:
    """Raises the errors of the backward kernel."""
    check_rms_norm(op, x, weight, cast)
    check_same(op, ("grad", grad), x)
    check_statistic(op, ("rstd", rstd), x[1])


def _fake(x: Tensor, weight: Tensor, eps: float, cast: int) -> tuple[Tensor, Tensor]:
    check_rms_norm("rms_norm", ("x", x), weight, cast)
    return x.new_empty(x.shape), empty_statistic(x)


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> tuple[Any, ...]:
    x, weight, _, cast = arguments
    grad_y, grad_rstd = grads
    rstd = saved[0]
    if grad_rstd is not None:
        # Only second derivatives (and whoever calls the operator for its rstd) come here. The parts
        # are added before they are rounded.
        return tuple(reference_gradients(reference, needs, grads, arguments))
    grad_x = grad_weight = None
    if grad_y is not None:
        grad_x, grad_weight = torch.ops.fusewheel.rms_norm_backward(grad_y, x, weight, rstd, cast)
    return grad_x, grad_weight, None, None


def _samples(make: Make) -> Iterator[Arguments]:
    for cast in (LLAMA, GEMMA, TORCH):
        yield make(255, 123), make(123), 1e-6, cast
        yield make.strided(3, 4, 33), make.strided(33), 1e-5, cast
    yield make(2, 507), make(507), 1e-6, LLAMA
    yield make(2, 3, 64)[:, 1:], make(64), 1e-6, LLAMA
    yield make.transposed(2, 9, 8), make(8), 1e-6, TORCH
    yield make(1, 8).expand(4, 8), make(1).expand(8), 1e-6, GEMMA
    # With less, nothing is left of the gradient but roundings.
    yield make(1), make(1), 0.5, LLAMA
    yield make(0, 16), make(16), 1e-6, LLAMA
    yield make(4, 32, scale=1e-4), make(32), 1e-6, LLAMA


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, size in SIZES:
        yield f"{rows}x{size}", (make(rows, size), make(size), 1e-6, LLAMA)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x, weight = make(4, 8), make(8)
    other = torch.float64 if x.dtype != torch.float64 else torch.float32
    yield BadInput((x.to(torch.int32), weight, 1e-6, 0), "x must be float32.*got int32")
    yield BadInput((x, weight.to(other), 1e-6, 0), "weight must have the dtype of x")
    yield BadInput((x, make(7), 1e-6, 0), r"weight must have shape \[8\].*got \[7\]")
    yield BadInput((x, make(1, 8), 1e-6, 0), r"weight must have shape \[8\].*got \[1, 8\]")
    yield BadInput((make(), weight, 1e-6, 0), "x must have at least one dimension")
    yield BadInput((make(4, 0), weight, 1e-6, 0), r"weight must have shape \[0\].*got \[8\]")
    yield BadInput((x, weight, 1e-6, -1), "cast must be 0 .*got -1")
    yield BadInput((x, weight, 1e-6, 3), "cast must be 0 .*got 3")


def backward_reference(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, cast: int
) -> tuple[Tensor, Tensor]:
    """The backward operator in PyTorch operators."""
    dy, w, scale = wide(grad), wide(weight), rstd.unsqueeze(-1)
    h = wide(x) * scale
    g = dy * (1 + w if cast == GEMMA else w)
    grad_x = scale * (g - h * (g * h).mean(-1, keepdim=True))
    rounded = h.to(x.dtype).to(h.dtype) if cast == LLAMA else h
    grad_weight = (dy * rounded).sum_to_size(weight.shape)
    return grad_x.to(x.dtype), grad_weight.to(weight.dtype)


def _backward_fake(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, cast: int
) -> tuple[Tensor, Tensor]:
    check_rms_norm_backward("rms_norm_backward", grad, ("x", x), weight, rstd, cast)
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for x, weight, eps, cast in _samples(make):
        rstd = reference(x.detach(), weight.detach(), eps, cast)[1]
        yield make(*x.shape), x, weight, rstd, cast
        if x.dim() == 2 and x.shape[0] > 1:
            yield make.strided(*x.shape), x, weight, rstd, cast


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    x, weight = make(4, 8), make(8)
    rstd = reference(x.detach(), weight.detach(), 1e-6, 0)[1]
    yield BadInput((make(4, 7), x, weight, rstd, 0), r"grad must have shape \[4, 8\]")
    yield BadInput((x, x, make(7), rstd, 0), r"weight must have shape \[8\].*got \[7\]")
    yield BadInput((make(), make(), weight, rstd, 0), "x must have at least one dimension")
    yield BadInput((x, x, weight, rstd, -1), "cast must be 0 .*got -1")
    yield BadInput((x, x, weight, rstd[:3], 0), r"rstd must have shape \[4\]")
    yield BadInput((x, x, weight, rstd.to(torch.bfloat16), 0), "rstd must be float")


OPERATORS = (
    Operator(
        name="rms_norm",
        reference=reference,
        fake=_fake,
        shapes=("x", "rows(x)"),
        backward=_backward,
        saves=("x", "weight", "rstd"),
        materialize_grads=False,
        sharding=row_wise((0,), ("rows", "rows")),
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=rms_norm,
    ),
    Operator(
        name="rms_norm_backward",
        reference=backward_reference,
        fake=_backward_fake,
        shapes=("x", "weight"),
        sharding=row_wise((0, 1, 3), ("rows", "sum")),
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)
