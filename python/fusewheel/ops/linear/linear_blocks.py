"""x @ weight.T + bias with a weight in stored blocks"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewheel.dispatch import sharding
from fusewheel.dispatch.operator import Arguments, BadInput, Make, Operator
from fusewheel.dispatch.sharding import PARTIAL, Layout
from fusewheel.ops._checks import check_bias, check_features, check_floating
from fusewheel.ops._rows import with_features
from fusewheel.ops.choices import BlockKind
from fusewheel.ops.linear._blocks import (
    FORMATS,
    check_blocks,
    factor_of,
    format_of,
    kind_number,
)
from fusewheel.ops.linear._quantized import SIZES, apply_backward, apply_linear, bias_gradient


def linear_blocks(x: Tensor, blocks: Tensor, kind: BlockKind, bias: Tensor | None = None) -> Tensor:
    """A linear layer whose weight is read in the blocks in which it is stored: `x @ w.T + bias`.

    A block has the codes of some neighbouring weights of a row, and their scales. The kinds from
    `"Q4_0"` to `"MXFP4"` are those of GGUF files, byte for byte:

    | kind | weights | bytes | kind | weights | bytes |
    |---|---|---|---|---|---|
    | `"Q4_0"` | 32 | 18 | `"Q2_K"` | 256 | 84 |
    | `"Q4_1"` | 32 | 20 | `"Q3_K"` | 256 | 110 |
    | `"Q5_0"` | 32 | 22 | `"Q4_K"` | 256 | 144 |
    | `"Q5_1"` | 32 | 24 | `"Q5_K"` | 256 | 176 |
    | `"Q8_0"` | 32 | 34 | `"Q6_K"` | 256 | 210 |
    | `"IQ4_NL"` | 32 | 18 | `"NF4"`, `"FP4"` | 64 | 36 |
    | `"MXFP4"` | 32 | 17 | `"FP8"` | 64 | 68 |

    `"NF4"`, `"FP4"` and `"FP8"` have a float32 scale, then the codes: 4-bit codes in the order of
    `"Q4_0"`, each 32 weights in 16 bytes; float8_e4m3fn numbers in their own order. A weight is a
    float32 number, the one that the package `gguf` decodes. Sums are float32 (float64 if `x` is
    float64) and rounded once. If `x` is bfloat16 and has more than 16 rows, processors with
    instructions for bfloat16 round the weight to bfloat16 before they multiply.

    Source: `torch.nn.functional.linear`; the blocks of llama.cpp's ggml; Dettmers et al., "QLoRA"
    (2023), for NF4.

    Args:
        x: `[..., K]`; float32, bfloat16, float16 or float64.
        blocks: `[N, K / weights, bytes]`, uint8, on the device of `x`.
        kind: the name of the format, one of those above.
        bias: `[N]`; one of the four dtypes of `x`, but float64 only if `x` is float64. Default
            None.

    Returns:
        A contiguous tensor `[..., N]` with the dtype of `x`; differentiable in `x` and `bias`.

    Raises:
        ValueError: `kind` is not one of the above.
        RuntimeError: a dtype, shape or device is not as above, or a tensor is sparse.
    """
    number = kind_number("linear_blocks", kind)
    y: Tensor = torch.ops.fusewheel.linear_blocks(x, blocks, number, bias)
    return y


def _reference(x: Tensor, blocks: Tensor, kind: int, bias: Tensor | None) -> Tensor:
    return apply_linear(x, factor_of(x, blocks, kind), bias, x.dtype)


def _fake(x: Tensor, blocks: Tensor, kind: int, bias: Tensor | None) -> Tensor:
    op, argument = "linear_blocks", ("x", x)
    check_floating(op, argument)
    format = check_blocks(op, blocks, kind, argument)
    check_features(op, argument, blocks.shape[1] * format.weights, "in features")
    check_bias(op, bias, blocks.shape[0], argument)
    return with_features(x, blocks.shape[0])


def _backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    _, blocks, kind, bias = arguments
    grad_x = grad_bias = None
    if needs[0]:
        grad_x = torch.ops.fusewheel.linear_blocks_backward(grads[0], blocks, kind)
    if needs[3]:
        grad_bias = bias_gradient(grads[0], bias)
    return grad_x, None, None, grad_bias


# Of each scale, for weights around 0. Q4_1 and Q5_1 add it, K-quants take it off.
_MINIMUM = {"Q4_1": -8.0, "Q5_1": -16.0, "Q2_K": 1.5, "Q4_K": 8.0, "Q5_K": 16.0}


def random_blocks(make: Make, name: str, rows: int, count: int) -> Tensor:
    """Random blocks `[rows, count, bytes]`: every code, and scales as in a trained layer."""
    format = FORMATS[name]
    generator = torch.Generator().manual_seed(rows * count + format.number)
    shape = rows, count, format.bytes
    blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

    def write(at: int, numbers: Tensor) -> None:
        stored = numbers.unsqueeze(-1).contiguous().view(torch.uint8)
        blocks[..., at : at + stored.shape[-1]] = stored

    scale = torch.rand(shape[:2], generator=generator) * 0.02 + 0.01
    # Sub-blocks of K-quants multiply it by numbers up to 63.
    scale = scale / 32 if format.weights == 256 else scale
    for at, factor in zip(format.halves, (1.0, _MINIMUM.get(name, 0.0)), strict=False):
        write(at, (factor * scale).half())
    for at in format.singles:
        write(at, scale)
    if name == "MXFP4":
        blocks[..., 0] = 118 + blocks[..., 0] % 8
    if name == "FP8":
        codes = blocks[..., 4:]
        codes[codes & 127 == 127] = 0  # NaN
    return blocks.to(make.device)


def _weight(make: Make, name: str, rows: int, count: int) -> tuple[Tensor, int]:
    return random_blocks(make, name, rows, count), FORMATS[name].number


def _samples(make: Make) -> Iterator[Arguments]:
    for i, (name, format) in enumerate(FORMATS.items()):
        yield (
            make(3, 256),
            *_weight(make, name, 33, 256 // format.weights),
            make(33) if i % 2 else None,
        )
        # One row has kernels of its own.
        yield make(1, 256), *_weight(make, name, 17, 256 // format.weights), None
    yield make(1, 512), *_weight(make, "Q4_K", 3, 2), make(3)
    yield make(255, 96), *_weight(make, "Q4_1", 123, 3), make(123)
    yield make(2, 3, 512), *_weight(make, "Q4_K", 107, 2), None
    yield make.strided(5, 64), *_weight(make, "NF4", 33, 1), make.strided(33)
    yield make(2, 64), *_weight(make, "Q8_0", 3, 2), make(3)
    yield make(0, 64), *_weight(make, "Q5_0", 5, 2), make(5)
    yield make(2, 0), *_weight(make, "Q5_0", 5, 0), make(5)
    yield make(1, 32), *_weight(make, "MXFP4", 3, 1), None
    yield make(32), *_weight(make, "IQ4_NL", 2, 1), None
    blocks, kind = _weight(make, "Q8_0", 9, 3)
    yield make.transposed(3, 64), blocks[::2, 1:], kind, make(5)


def _benchmarks(make: Make) -> Iterator[tuple[str, Arguments]]:
    for name in ("Q4_K", "Q6_K", "NF4", "MXFP4"):
        for rows, columns, features in SIZES:
            columns = columns // 256 * 256
            weight = _weight(make, name, features, columns // FORMATS[name].weights)
            yield f"{name} {rows}x{columns}x{features}", (make(rows, columns), *weight, None)


def _bad_blocks(name: str, x: Tensor, blocks: Tensor, rest: tuple[Any, ...]) -> Iterator[BadInput]:
    """What both operators refuse; the blocks are of Q4_0."""
    q4_0 = FORMATS["Q4_0"].number
    shape = r"blocks must have shape \[out features, blocks, 18\] for Q4_0, got"
    yield BadInput((x.int(), blocks, q4_0, *rest), f"{name} must be float32.*got int32")
    yield BadInput((x, blocks.float(), q4_0, *rest), "blocks must be uint8, got float32")
    yield BadInput((x, blocks[0], q4_0, *rest), shape)
    yield BadInput((x, blocks[..., 1:], q4_0, *rest), shape)
    yield BadInput((x, blocks, 5, *rest), "kind must be the number of a block format, got 5")
    yield BadInput((x, blocks, -1, *rest), "kind must be the number of a block format, got -1")
    yield BadInput((x, blocks, FORMATS["Q4_K"].number, *rest), r"blocks, 144\] for Q4_K")
    yield BadInput((x[..., 1:], blocks, q4_0, *rest), f"{name} must have {x.shape[-1]} elements in")
    yield BadInput((x.sum(), blocks, q4_0, *rest), f"{name} must have {x.shape[-1]} elements in")


def _bad_inputs(make: Make) -> Iterator[BadInput]:
    x, (blocks, kind) = make(4, 64), _weight(make, "Q4_0", 3, 2)
    yield from _bad_blocks("x", x, blocks, (None,))
    bias = make(3)
    yield BadInput((x, blocks, kind, bias[1:]), r"bias must have shape \[3\]")
    yield BadInput((x, blocks, kind, bias[None]), r"bias must have shape \[3\]")
    yield BadInput((x, blocks, kind, bias.int()), "bias must be float32.*got int32")
    if x.dtype != torch.float64:
        message = "bias may be float64 only where x is"
        yield BadInput((x, blocks, kind, bias.double()), message)


def _backward_reference(grad: Tensor, blocks: Tensor, kind: int) -> Tensor:
    return apply_backward(grad, factor_of(grad, blocks, kind))


def _backward_fake(grad: Tensor, blocks: Tensor, kind: int) -> Tensor:
    op, argument = "linear_blocks_backward", ("grad", grad)
    check_floating(op, argument)
    format = check_blocks(op, blocks, kind, argument)
    check_features(op, argument, blocks.shape[0], "out features")
    return with_features(grad, blocks.shape[1] * format.weights)


def _backward_backward(
    needs: Sequence[bool], grads: Sequence[Tensor], arguments: Arguments, saved: Sequence[Tensor]
) -> Sequence[Any]:
    return torch.ops.fusewheel.linear_blocks(grads[0], *arguments[1:], None), None, None


def _backward_samples(make: Make) -> Iterator[Arguments]:
    for x, blocks, kind, _ in _samples(make):
        yield make(*x.shape[:-1], blocks.shape[0]), blocks, kind
    yield make.strided(5, 33), *_weight(make, "Q5_1", 33, 2)


def _backward_bad_inputs(make: Make) -> Iterator[BadInput]:
    blocks, _ = _weight(make, "Q4_0", 3, 2)
    yield from _bad_blocks("grad", make(4, 3), blocks, ())


def _sharding(*arguments: Any) -> Iterator[Layout]:
    return sharding.linear(arguments, given=(1, 3), taken={1: 1, 3: PARTIAL}, even=True)


def _backward_sharding(*arguments: Any) -> Iterator[Layout]:
    return sharding.linear_backward(arguments, given=(1,), taken={1: 1}, even=True)


def _flops(x: Tensor, blocks: Tensor, *rest: Any) -> int:
    return 2 * x.numel() * blocks.shape[0]


def _backward_flops(grad: Tensor, blocks: Tensor, kind: int) -> int:
    weights = format_of("linear_blocks_backward", kind).weights
    return 2 * grad.numel() * blocks.shape[1] * weights


OPERATORS = (
    Operator(
        name="linear_blocks",
        autocast=None,
        flops=_flops,
        reference=_reference,
        fake=_fake,
        shapes=("with_last(x, blocks[0])",),
        backward=_backward,
        saves={"x": ("blocks",), "bias": ()},
        sharding=_sharding,
        samples=_samples,
        bad_inputs=_bad_inputs,
        benchmarks=_benchmarks,
        function=linear_blocks,
    ),
    Operator(
        name="linear_blocks_backward",
        flops=_backward_flops,
        reference=_backward_reference,
        fake=_backward_fake,
        # As in the table of formats: K-quants have the numbers 10 to 14, ours begin at 1000.
        shapes=(
            "with_last(grad, blocks[1] * (256 if 10 <= kind and kind <= 14"
            " else 64 if kind >= 1000 else 32))",
        ),
        backward=_backward_backward,
        saves={"grad": ("blocks",)},
        sharding=_backward_sharding,
        samples=_backward_samples,
        bad_inputs=_backward_bad_inputs,
    ),
)
