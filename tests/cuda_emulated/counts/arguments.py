"""What the cases call operators with: arguments for any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fusewheel.dispatch.operator import Arguments, Make
from fusewheel.ops.linear._blocks import FORMATS
from fusewheel.ops.linear.linear_blocks import random_blocks
from torch import Tensor

WIDTH = 4096
CLASSES = 16384
MANY_CLASSES = 131072
HEADS = 32
KEY_HEADS = 8
HEAD = 128
GROUP = 128
CODES_IN_A_BYTE = 2
IGNORED = -100
FEW_ROWS = 16
FEW_BLOCK_ROWS = 4
FLOAT_PARTS = 3
"""Of float32 in bfloat16. float16 has two."""
MANY_EXPERTS = 8192
SLICES = 2
"""Of the rows, whose gradients of the weight are added up."""
SLICE = 1024
GROUPS = 4
"""Of rows."""
INNER = 512
"""Columns of these rows."""
OUTER = 256
"""Columns of what they become."""


def new(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers between 0 and 1."""
    return torch.rand(shape).to(dtype)


def wide(*shape: int) -> Tensor:
    """Random numbers in the dtype of computation."""
    return torch.rand(shape)


def elementwise(tensors: int, *rest: Any) -> Callable[[int], Arguments]:
    """Tensors of one shape, then other arguments."""
    return lambda rows: (*(new(rows, WIDTH) for _ in range(tensors)), *rest)


def chunks(rows: int, size: int) -> int:
    """Into how many parts a norm's backward pass cuts the rows: `row_chunks` in backend.cc."""
    return min(max(256, min(2**20 // size, 2048)), rows // 8 + 1)


def column_sums(sums: int, rows: int) -> int:
    """Bytes of the partial sums over rows: written and read."""
    return 2 * 4 * sums * chunks(rows, WIDTH) * WIDTH


def norm(tensors: int, parameters: int, *rest: Any) -> Callable[[int], Arguments]:
    """Rows, weights, options."""
    return lambda rows: (
        *(new(rows, WIDTH) for _ in range(tensors)),
        *(new(WIDTH) for _ in range(parameters)),
        *rest,
    )


def norm_backward(tensors: int, statistics: int, *rest: Any) -> Callable[[int], Arguments]:
    """Rows, one weight, what the forward pass kept of each row, options."""
    return lambda rows: (
        *(new(rows, WIDTH) for _ in range(tensors)),
        new(WIDTH),
        *(wide(rows) for _ in range(statistics)),
        *rest,
    )


def logits(classes: int, rows: int) -> Arguments:
    """Arguments of cross_entropy that wants a gradient."""
    target = torch.randint(classes, (rows,))
    return new(rows, classes), target, None, IGNORED, 0.0, 0.0, 0.0, True


def rotated(length: int, size: int = HEAD, partial: int = HEAD) -> Arguments:
    """Queries and keys as a projection leaves them, tables, options."""
    q = new(1, length, HEADS, size).transpose(1, 2)
    k = new(1, length, KEY_HEADS, size).transpose(1, 2)
    return q, k, new(1, length, partial), new(1, length, partial), False


def rotated_in_place(length: int) -> Arguments:
    """One tensor of `rotated`."""
    q, _, cos, sin, interleaved = rotated(length)
    return q, cos, sin, interleaved


def halves(tensors: int, rows: int) -> Arguments:
    """Results of attention over some keys, with the logarithms of their sums."""
    pairs: list[Tensor] = []
    for _ in range(tensors):
        pairs += [new(1, HEADS, rows, HEAD), wide(1, HEADS, rows)]
    return tuple(pairs)


def floats(rows: int, features: int, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    """Activations that are wider than the weight."""
    return wide(rows, WIDTH), new(features, WIDTH, dtype=dtype), None


def int8(rows: int, features: int) -> Arguments:
    """A weight of 8 bits, one scale a row."""
    codes = torch.randint(-128, 128, (features, WIDTH), dtype=torch.int8)
    return new(rows, WIDTH), codes, new(features, 1), None, False


def int4(rows: int, features: int) -> Arguments:
    """A weight of 4 bits in groups."""
    codes = torch.randint(256, (features, WIDTH // CODES_IN_A_BYTE), dtype=torch.uint8)
    scales, zeros = (new(features, WIDTH // GROUP) for _ in range(2))
    return new(rows, WIDTH), codes, scales, zeros, GROUP, None, False


def many_rows(make: Callable[[int, int], Arguments], features: int) -> Arguments:
    """So many rows that the weight is decoded for PyTorch's product."""
    x, *weight = make(FEW_ROWS + 1, features)
    return x.float(), *weight


def decoded(bytes_of_row: int, features: int) -> int:
    """Bytes of a weight with its scales, and of its numbers in float32."""
    return features * (bytes_of_row + 4 * WIDTH)


def routing(experts: int, tokens: int) -> Arguments:
    """8 of so many experts."""
    return new(tokens, experts), 8, None, False, 1, 1, 1, True, 1.0


def sliced_losses(classes: int) -> Arguments:
    """Losses of two slices of rows, from whose logits the gradient of a weight is summed."""
    x, weight = (new(count, SLICE) for count in (SLICES * SLICE, classes))
    target = torch.randint(classes, (SLICES * SLICE,))
    return x, weight, target, None, None, IGNORED, 0.0, 0.0, 0.0, True, False, True, False


def sums_of_slices(classes: int) -> int:
    """Bytes of each slice's gradient and of the sum, which all but the first slice read too."""
    return classes * SLICE * (SLICES * (2 + 4) + (SLICES - 1) * 4)


def mixture(experts: int) -> Arguments:
    """A token for each 4 experts, which all go to others: every weight is read."""
    tokens, features, inner = experts // 4, 1024, 512
    chosen = torch.arange(experts).view(tokens, 4)
    gate_up, down = new(experts, 2 * inner, features), new(experts, features, inner)
    x, weights = new(tokens, features), new(tokens, 4)
    return x, chosen, weights, gate_up, 0, None, down, 0, None, 0


def between_layers(experts: int) -> int:
    """Bytes of what is between the layers, written and read."""
    return 2 * 2 * experts * 512


def blocks(name: str, features: int, columns: int = WIDTH) -> tuple[Tensor, int]:
    """A weight in stored blocks, and the number of their format."""
    format = FORMATS[name]
    stored = random_blocks(Make(torch.float32), name, features, columns // format.weights)
    return stored, format.number


def stored_blocks(name: str, features: int) -> Arguments:
    """So many rows that the weight is decoded for PyTorch's product."""
    return wide(FEW_BLOCK_ROWS + 1, WIDTH), *blocks(name, features), None


def row_of_blocks(name: str, features: int) -> Arguments:
    """A row, as a token has it, and a weight that is decoded while it is read."""
    return wide(1, WIDTH), *blocks(name, features), None


def decoded_blocks(name: str, features: int) -> int:
    """Bytes of a weight in blocks, and of its numbers in float32."""
    format = FORMATS[name]
    return decoded(WIDTH // format.weights * format.bytes, features)


def rounding(make: Callable[[int, int], Arguments], rows: int) -> Arguments:
    """Activations that are rounded to 8 bits, and a weight of one row."""
    *rest, _ = make(rows, 1)
    return *rest, True


def rounded(bytes_of_row: int, rows: int) -> int:
    """Bytes of activations, of what they become in float32, and of the decoded weight."""
    return rows * (2 + 4) * WIDTH + decoded(bytes_of_row, 1)


def ends(rows: int) -> Tensor:
    """Where groups of as many rows end."""
    return torch.arange(1, GROUPS + 1, dtype=torch.int32) * rows // GROUPS


def grouped(rows: int) -> Arguments:
    """Rows of groups, and a weight for each."""
    return new(rows, INNER), new(GROUPS, OUTER, INNER), ends(rows), None


def grouped_backward_x(rows: int) -> Arguments:
    """What the gradient of these rows is computed from."""
    return new(rows, OUTER), new(GROUPS, OUTER, INNER), ends(rows)


def grouped_backward_weight(rows: int) -> Arguments:
    """What the gradients of these weights are computed from: of the weights the shape alone."""
    return new(rows, OUTER), new(rows, INNER), new(1).expand(GROUPS, OUTER, INNER), ends(rows)


def grouped_blocks(rows: int, new: Callable[..., Tensor] = wide) -> Arguments:
    """Rows of groups, and a weight in stored blocks for each."""
    stored, kind = blocks("Q4_K", GROUPS * OUTER, INNER)
    return new(rows, INNER), stored.unflatten(0, (GROUPS, OUTER)), kind, ends(rows), None


def grouped_blocks_backward(rows: int, new: Callable[..., Tensor] = wide) -> Arguments:
    """What the gradient of these rows is computed from."""
    stored, kind = blocks("Q4_K", GROUPS * OUTER, INNER)
    return new(rows, OUTER), stored.unflatten(0, (GROUPS, OUTER)), kind, ends(rows)


WEIGHT_PARTS = 3
"""Of a decoded weight, in bfloat16."""


def decoded_floats(rows: int) -> int:
    """Bytes of these weights in float32, written and read."""
    return 2 * 4 * GROUPS * OUTER * INNER


def decoded_groups(rows: int) -> int:
    """Likewise in parts in bfloat16."""
    return 2 * 2 * WEIGHT_PARTS * GROUPS * OUTER * INNER


def decoded_once(rows: int) -> int:
    """Those of one such weight."""
    return decoded_groups(rows) // GROUPS


def one_of_blocks(rows: int) -> Arguments:
    """Rows, and a weight in stored blocks."""
    return new(rows, INNER), *blocks("Q4_K", OUTER, INNER), None


def one_of_blocks_backward(rows: int) -> Arguments:
    """What the gradient of these rows is computed from."""
    return new(rows, OUTER), *blocks("Q4_K", OUTER, INNER)


def int8_backward(rows: int) -> Arguments:
    """Likewise with a weight of 8 bits."""
    codes = torch.randint(-128, 128, (OUTER, INNER), dtype=torch.int8)
    return new(rows, OUTER), codes, new(OUTER, 1)


def int4_backward(rows: int) -> Arguments:
    """Likewise with a weight of 4 bits."""
    codes = torch.randint(256, (OUTER, INNER // CODES_IN_A_BYTE), dtype=torch.uint8)
    scales, zeros = (new(OUTER, INNER // GROUP) for _ in range(2))
    return new(rows, OUTER), codes, scales, zeros, GROUP


def mixture_of_blocks(experts: int) -> Arguments:
    """`mixture` with weights in stored blocks, and float32 activations."""
    x, chosen, weights, gate_up, _, _, down, *_ = mixture(experts)
    first, kind = blocks("Q4_K", experts * gate_up.shape[1], gate_up.shape[2])
    last, _ = blocks("Q4_K", experts * down.shape[1], down.shape[2])
    both = (stored.unflatten(0, (experts, -1)) for stored in (first, last))
    gate_up, down = both
    return x.float(), chosen, weights, gate_up, kind, None, down, kind, None, 0
