"""x @ weight.T + bias with an int8 weight"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch import sharding
from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import PARTIAL, REPLICATE, Layout, Place
from fusewheel.ops._checks import check_bias, check_features, check_floating
from fusewheel.ops._rows import compute_dtype, with_features
from fusewheel.ops.linear._quantized import (
    SIZES,
    apply_backward,
    apply_linear,
    bad_biases,
    bad_weights,
    bias_gradient,
    check_int8,
    decode_int8,
    groups_of,
    random_codes,
    random_scales,
    rounded,
)


def linear_int8(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    bias: Tensor | None = None,
    dynamic: bool = False,
) -> Tensor:
    """A linear layer with an 8-bit weight: `x @ w.T + bias` with `w = qweight * scales`.

    There is one scale for each out feature, or for each out feature and group of in features.
    GGUF's Q8_0 has `scales [N, K / 32]`. Sums are float32 (float64 if `x` is float64) and rounded
    once.

    Source: `torch.nn.functional.linear`; with `dynamic`, the vector-wise quantisation of Dettmers
    et al., "LLM.int8()" (2022).

    Args:
        x: `[..., K]`; float32, bfloat16, float16 or float64.
        qweight: codes `[N, K]`, int8, on the device of `x`.
        scales: `[N]`, or `[N, groups]` with groups of a multiple of 32 in features; any of the four
            floating dtypes, but float64 only if `x` is float64.
        bias: `[N]`, with the dtype rule of `scales`; default None.
        dynamic: if True, rounds the activations to int8 and multiplies integers, which is faster
            and less exact. For each row of `x` and group of in features, `step = max(abs(x)) / 127`
            and the code is `round(x / step)`, halves to even. Gradients are those of the unrounded
            activations. float64 activations are not rounded. Default False.

    Returns:
        A contiguous tensor `[..., N]` with the dtype of `x`; differentiable in `x`, `scales` and
        `bias`.

    Raises:
        RuntimeError: a dtype, shape or device is not as above, or a tensor is sparse.
    """
    y: Tensor = torch.ops.fusewheel.linear_int8(x, qweight, scales, bias, dynamic)
    return y


def _reference(
    x: Tensor, qweight: Tensor, scales: Tensor, bias: Tensor | None, dynamic: bool
) -> Tensor:
    weight = decode_int8(qweight, scales, compute_dtype(x))
    taken = rounded(x, qweight.shape[1] // groups_of(scales)) if dynamic else x
    return apply_linear(taken, weight, bias, x.dtype)


def _fake(x: Tensor, qweight: Tensor, scales: Tensor, bias: Tensor | None, dynamic: bool) -> Tensor:
    op, argument = "linear_int8", ("x", x)
    check_floating(op, argument)
    check_int8(op, qweight, scales, argument)
    check_features(op, argument, qweight.shape[1], "in features")
    check_bias(op, bias, qweight.shape[0], argument)
    return with_features(x, qweight.shape[0])


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    _, qweight, scales, bias, _ = arguments
    if needs[2]:
        # Learned scales are rare: the reference differentiates them.
        return reference_gradients(_reference, needs, grads, arguments)
    grad_x = grad_bias = None
    if needs[0]:
        grad_x = torch.ops.fusewheel.linear_int8_backward(grads[0], qweight, scales)
    if needs[3]:
        grad_bias = bias_gradient(grads[0], bias)
    return grad_x, None, None, grad_bias, None


def _weight(make: Make, rows: int, columns: int, *groups: int) -> tuple[Tensor, Tensor]:
    return random_codes(make, rows, columns, torch.int8), random_scales(make, rows, *groups)


def _samples(make: Make) -> Iterator[Arguments]:
    for dynamic in (False, True):
        yield make(255, 96), *_weight(make, 123, 96), make(123), dynamic
        yield make(2, 3, 128), *_weight(make, 507, 128, 4), None, dynamic
        yield make.strided(5, 64), *_weight(make, 33, 64, 1), make.strided(33), dynamic
        yield make(1, 512), *_weight(make, 123, 512, 4), make(123), dynamic
        yield make(2, 64), *_weight(make, 3, 64, 2), make(3), dynamic
        yield make(1, 32), *_weight(make, 3, 32), None, dynamic
        yield make(0, 64), *_weight(make, 5, 64, 2), make(5), dynamic
    yield make(7, 37), *_weight(make, 5, 37), make(5), False
    yield make(7, 37), *_weight(make, 5, 37), make(5), True
    yield make(32), *_weight(make, 1, 32), None, False
    codes, scales = _weight(make, 9, 128, 2)
    yield make.transposed(3, 64), codes[::2, 64:], scales[::2, 1:], make(5), False


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, columns, features in SIZES:
        for dynamic in (False, True):
            weight = _weight(make, features, columns, columns // 32)
            label = f"{rows}x{columns}x{features}" + ("d" if dynamic else "")
            yield label, (make(rows, columns), *weight, None, dynamic)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x, weight = make(4, 64), _weight(make, 3, 64, 2)
    yield from bad_weights("x", x, weight, (None, False))
    yield from bad_biases(x, weight, 3, False)
    yield from _bad_scales(x, (None, True))


def _bad_scales(x: Tensor, rest: tuple[Any, ...]) -> Iterator[BadInput]:
    codes = torch.zeros(3, 64, dtype=torch.int8, device=x.device)
    x = x.new_zeros(4, x.shape[1])
    for shape in ((2,), (3, 3), (3, 4), (3, 0), (3, 1, 1), ()):
        yield BadInput((x, codes, x.new_ones(shape), *rest), r"scales must have shape \[3\] or \[3")
    yield BadInput((x, codes.byte(), x.new_ones(3), *rest), "qweight must be int8, got uint8")


def _backward_reference(grad: Tensor, qweight: Tensor, scales: Tensor) -> Tensor:
    return apply_backward(grad, decode_int8(qweight, scales, compute_dtype(grad)))


def _backward_fake(grad: Tensor, qweight: Tensor, scales: Tensor) -> Tensor:
    op, argument = "linear_int8_backward", ("grad", grad)
    check_floating(op, argument)
    check_int8(op, qweight, scales, argument)
    check_features(op, argument, qweight.shape[0], "out features")
    return with_features(grad, qweight.shape[1])


def _backward_backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    if needs[2]:
        return reference_gradients(_backward_reference, needs, grads, arguments)
    return torch.ops.fusewheel.linear_int8(grads[0], *arguments[1:], None, False), None, None


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for x, qweight, scales, _, _ in _samples(make):
        yield make(*x.shape[:-1], qweight.shape[0]), qweight, scales
    yield make.strided(5, 33), *_weight(make, 33, 64, 2)


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    grad = make(4, 3)
    yield from bad_weights("grad", grad, _weight(make, 3, 64, 2), ())
    yield from _bad_scales(grad, ())


def _sharding(*arguments: Any) -> Iterator[Layout]:
    x, _, scales, _, dynamic = arguments
    # A device with a part of a group would round by the largest activation of that part.
    if dynamic and len(scales.shape) == 1:
        yield from sharding.row_wise((0,), ("rows",))(*arguments)
        yield Layout(sharding.places(arguments, {1: 0, 2: 0, 3: 0}), (len(x.shape) - 1,))
    else:
        taken = {**_taken(scales), 3: PARTIAL}
        yield from sharding.linear(arguments, given=(1, 2, 3), taken=taken, even=True)


def _backward_sharding(*arguments: Any) -> Iterator[Layout]:
    taken = _taken(arguments[2])
    return sharding.linear_backward(arguments, given=(1, 2), taken=taken, even=True)


def _taken(scales: Tensor) -> dict[int, Place]:
    return {1: 1, 2: 1 if len(scales.shape) == 2 else REPLICATE}


def _flops(x: Tensor, qweight: Tensor, *rest: Any) -> int:
    return 2 * x.numel() * qweight.shape[0]


def _backward_flops(grad: Tensor, qweight: Tensor, *rest: Any) -> int:
    return 2 * grad.numel() * qweight.shape[1]


OPERATORS = (
    Operator(
        name="linear_int8",
        autocast=None,
        flops=_flops,
        reference=_reference,
        fake=_fake,
        shapes=("with_last(x, qweight[0])",),
        backward=_backward,
        saves={"x": ("qweight", "scales"), "scales": ("x", "qweight"), "bias": ()},
        sharding=_sharding,
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=linear_int8,
    ),
    Operator(
        name="linear_int8_backward",
        flops=_backward_flops,
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("with_last(grad, qweight[1])",),
        backward=_backward_backward,
        saves={"grad": ("qweight", "scales"), "scales": ("grad", "qweight")},
        sharding=_backward_sharding,
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)
