"""x @ weight.T + bias with a 4-bit weight"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch import sharding
from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import PARTIAL, Layout, Place
from fusewheel.ops._checks import check_bias, check_features, check_floating
from fusewheel.ops._rows import compute_dtype, with_features
from fusewheel.ops.linear._quantized import (
    INT4_BLOCK,
    SIZES,
    apply_backward,
    apply_linear,
    bad_biases,
    bad_weights,
    bias_gradient,
    check_int4,
    decode_int4,
    random_codes,
    random_scales,
    rounded,
)


def linear_int4(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    zeros: Tensor,
    group_size: int = 32,
    bias: Tensor | None = None,
    dynamic: bool = False,
) -> Tensor:
    """A linear layer with a 4-bit weight: `x @ w.T + bias` with `w = code * scale + zero`.

    The codes are 0 to 15. Each out feature and group of in features has a scale and a zero, which
    is the weight of code 0. A byte holds two codes, as in GGUF's Q4_0 and Q4_1: byte `j` of each 32
    elements holds element `j` in its low half and element `16 + j` in its high half. Sums are
    float32 (float64 if `x` is float64) and rounded once.

    Source: `torch.nn.functional.linear`; the blocks of llama.cpp's ggml.

    Args:
        x: `[..., K]`; float32, bfloat16, float16 or float64.
        qweight: packed codes `[N, K / 2]`, uint8, on the device of `x`.
        scales: `[N, K / group_size]`; any of the four floating dtypes, but float64 only if `x` is
            float64.
        zeros: `[N, K / group_size]`, with the dtype of `scales`.
        group_size: in features that share a scale: 32 (default), 64 or 128.
        bias: `[N]`, with the dtype rule of `scales`; default None.
        dynamic: if True, rounds the activations to int8 and multiplies integers, which is faster
            and less exact. For each row of `x` and 32 in features, `step = max(abs(x)) / 127` and
            the code is `round(x / step)`, halves to even. Gradients are those of the unrounded
            activations. float64 activations are not rounded. Default False.

    Returns:
        A contiguous tensor `[..., N]` with the dtype of `x`; differentiable in `x`, `scales`,
        `zeros` and `bias`.

    Raises:
        RuntimeError: a dtype, shape, device or `group_size` is not as above, or a tensor is sparse.
    """
    y: Tensor = torch.ops.fusewheel.linear_int4(
        x, qweight, scales, zeros, group_size, bias, dynamic
    )
    return y


def _reference(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    zeros: Tensor,
    group_size: int,
    bias: Tensor | None,
    dynamic: bool,
) -> Tensor:
    weight = decode_int4(qweight, scales, zeros, group_size, compute_dtype(x))
    return apply_linear(rounded(x, INT4_BLOCK) if dynamic else x, weight, bias, x.dtype)


def _fake(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    zeros: Tensor,
    group_size: int,
    bias: Tensor | None,
    dynamic: bool,
) -> Tensor:
    op, argument = "linear_int4", ("x", x)
    check_floating(op, argument)
    check_int4(op, qweight, scales, zeros, group_size, argument)
    check_features(op, argument, 2 * qweight.shape[1], "in features")
    check_bias(op, bias, qweight.shape[0], argument)
    return with_features(x, qweight.shape[0])


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    _, qweight, scales, zeros, group_size, bias, _ = arguments
    if needs[2] or needs[3]:
        # Learned scales are rare: the reference differentiates them.
        return reference_gradients(_reference, needs, grads, arguments)
    grad_x = grad_bias = None
    if needs[0]:
        weight = (qweight, scales, zeros, group_size)
        grad_x = torch.ops.fusewheel.linear_int4_backward(grads[0], *weight)
    if needs[5]:
        grad_bias = bias_gradient(grads[0], bias)
    return grad_x, None, None, None, None, grad_bias, None


def _weight(
    make: Make, rows: int, columns: int, group_size: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    codes = random_codes(make, rows, columns // 2, torch.uint8)
    scales = random_scales(make, rows, columns // group_size)
    zeros = make(rows, columns // group_size, scale=0.1).detach() - 8 * scales
    return codes, scales, zeros, group_size


def _samples(make: Make) -> Iterator[Arguments]:
    for dynamic in (False, True):
        yield make(255, 96), *_weight(make, 123, 96, 32), make(123), dynamic
        yield make(2, 3, 128), *_weight(make, 507, 128, 64), None, dynamic
        yield make.strided(5, 128), *_weight(make, 33, 128, 128), make.strided(33), dynamic
        yield make(1, 512), *_weight(make, 123, 512, 128), make(123), dynamic
        yield make(2, 64), *_weight(make, 3, 64, 64), make(3), dynamic
        yield make(1, 32), *_weight(make, 3, 32, 32), None, dynamic
        yield make(0, 64), *_weight(make, 5, 64, 32), make(5), dynamic
    yield make(32), *_weight(make, 1, 32, 32), None, False
    codes, scales, zeros, size = _weight(make, 9, 128, 64)
    yield (
        *(make.transposed(3, 64), codes[::2, 32:], scales[::2, 1:], zeros[::2, 1:], size),
        *(make(5), False),
    )


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for rows, columns, features in SIZES:
        for dynamic in (False, True):
            weight = _weight(make, features, columns, 32)
            label = f"{rows}x{columns}x{features}" + ("d" if dynamic else "")
            yield label, (make(rows, columns), *weight, None, dynamic)


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x, weight = make(4, 64), _weight(make, 3, 64, 32)
    yield from bad_weights("x", x, weight, (None, False))
    yield from bad_biases(x, weight, 3, False)
    yield from _bad_groups(x, (None, True))


def _bad_groups(x: Tensor, rest: tuple[Any, ...]) -> Iterator[BadInput]:
    codes = torch.zeros(3, 32, dtype=torch.uint8, device=x.device)
    x = x.new_zeros(4, x.shape[1])
    scales = x.new_ones(3, 2)
    for shape in ((3,), (3, 1), (2, 2), (3, 2, 1), ()):
        wrong = x.new_ones(shape)
        message = r"must have shape \[3, 2\]"
        yield BadInput((x, codes, wrong, scales, 32, *rest), f"scales {message}")
        yield BadInput((x, codes, scales, wrong, 32, *rest), f"zeros {message}")
    other = torch.float16 if x.dtype != torch.float16 else torch.float32
    yield BadInput(
        (x, codes, scales, scales.to(other), 32, *rest), "zeros must have the dtype of scales"
    )
    yield BadInput(
        (x, codes, scales, scales, 16, *rest), "group_size must be 32, 64 or 128, got 16"
    )
    yield BadInput((x, codes, scales, scales, 0, *rest), "group_size must be 32, 64 or 128, got 0")
    yield BadInput((x, codes, scales, scales, -32, *rest), "group_size must be.*got -32")
    yield BadInput((x, codes, scales, scales, 128, *rest), "qweight must hold a multiple of group")
    yield BadInput((x, codes.char(), scales, scales, 32, *rest), "qweight must be uint8, got int8")


def _backward_reference(
    grad: Tensor, qweight: Tensor, scales: Tensor, zeros: Tensor, group_size: int
) -> Tensor:
    weight = decode_int4(qweight, scales, zeros, group_size, compute_dtype(grad))
    return apply_backward(grad, weight)


def _backward_fake(
    grad: Tensor, qweight: Tensor, scales: Tensor, zeros: Tensor, group_size: int
) -> Tensor:
    op, argument = "linear_int4_backward", ("grad", grad)
    check_floating(op, argument)
    check_int4(op, qweight, scales, zeros, group_size, argument)
    check_features(op, argument, qweight.shape[0], "out features")
    return with_features(grad, 2 * qweight.shape[1])


def _backward_backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    if needs[2] or needs[3]:
        return reference_gradients(_backward_reference, needs, grads, arguments)
    grad_grad = torch.ops.fusewheel.linear_int4(grads[0], *arguments[1:], None, False)
    return grad_grad, None, None, None, None


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for x, *weight, _, _ in _samples(make):
        yield make(*x.shape[:-1], weight[0].shape[0]), *weight
    yield make.strided(5, 33), *_weight(make, 33, 64, 64)


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    grad = make(4, 3)
    yield from bad_weights("grad", grad, _weight(make, 3, 64, 32), ())
    yield from _bad_groups(grad, ())


def _sharding(*arguments: Any) -> Iterator[Layout]:
    taken: dict[int, Place] = {1: 1, 2: 1, 3: 1, 5: PARTIAL}
    return sharding.linear(arguments, given=(1, 2, 3, 5), taken=taken, even=True)


def _backward_sharding(*arguments: Any) -> Iterator[Layout]:
    taken = {1: 1, 2: 1, 3: 1}
    return sharding.linear_backward(arguments, given=(1, 2, 3), taken=taken, even=True)


def _flops(x: Tensor, qweight: Tensor, *rest: Any) -> int:
    return 2 * x.numel() * qweight.shape[0]


def _backward_flops(grad: Tensor, qweight: Tensor, *rest: Any) -> int:
    return 2 * grad.numel() * 2 * qweight.shape[1]


OPERATORS = (
    Operator(
        name="linear_int4",
        autocast=None,
        flops=_flops,
        reference=_reference,
        fake=_fake,
        shapes=("with_last(x, qweight[0])",),
        backward=_backward,
        saves={
            "x": ("qweight", "scales", "zeros"),
            "scales": ("x", "qweight"),
            "zeros": ("x",),
            "bias": (),
        },
        sharding=_sharding,
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=linear_int4,
    ),
    Operator(
        name="linear_int4_backward",
        flops=_backward_flops,
        reference=_backward_reference,
        fake=_backward_fake,
        shapes=("with_last(grad, 2 * qweight[1])",),
        backward=_backward_backward,
        saves={
            "grad": ("qweight", "scales", "zeros"),
            "scales": ("grad", "qweight"),
            "zeros": ("grad",),
        },
        sharding=_backward_sharding,
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)
