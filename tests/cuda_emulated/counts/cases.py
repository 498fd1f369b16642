"""One call of each operator that has kernels of its own.

A case makes its arguments for any number of rows: few to be counted, and as many as a model has for
the prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fusewheel import ops
from fusewheel.dispatch.operator import Arguments, Operator
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

OPERATORS = {operator.name: operator for operator in ops.operators()}
WIDTH = 4096
CLASSES = 16384
MANY_CLASSES = 131072
HEADS = 32
KEY_HEADS = 8
HEAD = 128
SMALL_HEAD = 64
GROUP = 128
CODES_IN_A_BYTE = 2
IGNORED = -100
FEW_ROWS = 16


@dataclass(frozen=True)
class Case:
    """One operator at one shape.

    Attributes:
        operator: its name.
        what: the shape that is predicted, in words.
        make: the arguments for a number of rows.
        counted: the rows that are counted.
        full: the rows that are predicted.
        partials: bytes that one launch leaves for another, or that both must read; they count as
            needed.
        products: whether the time of its multiplications is predicted too.
        own: the least bytes of its kernels, where PyTorch multiplies what they write: that is not
            counted, and no time is predicted.
    """

    operator: str
    what: str
    make: Callable[[int], Arguments]
    counted: int
    full: int
    partials: Callable[[int], int] = lambda rows: 0
    products: bool = False
    own: Callable[[int], int] | None = None

    @property
    def name(self) -> str:
        """What the tables call it."""
        return f"{self.operator}: {self.what}"

    @property
    def declared(self) -> Operator:
        """The operator's declaration."""
        return OPERATORS[self.operator]

    def minimum(self, rows: int) -> int:
        """Bytes of every argument and result, once, and what `partials` says; or `own`."""
        if self.own is not None:
            return self.own(rows)
        with FakeTensorMode():
            arguments = self.make(rows)
            results = self.declared.overload(*arguments)
        written = self.declared.mutates
        tensors = [*arguments, *(results if isinstance(results, tuple | list) else [results])]
        if written is not None and self.declared.in_place:
            tensors.append(arguments[written])
        return sum(_bytes(t) for t in tensors if isinstance(t, Tensor)) + self.partials(rows)

    def operations(self, rows: int) -> int:
        """Additions and multiplications of its products."""
        if not self.products or self.declared.flops is None:
            return 0
        with FakeTensorMode():
            return int(self.declared.flops(*self.make(rows)))


def _bytes(tensor: Tensor) -> int:
    """Of the different elements."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride != 0 else 1
    return count * tensor.element_size()


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


def attention(size: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one sequence."""
    q = new(1, HEADS // 8, length, size)
    k, v = (new(1, KEY_HEADS // 8, length, size) for _ in range(2))
    return q, k, v


def attention_forward(size: int, length: int) -> Arguments:
    """Causal attention."""
    return *attention(size, length), None, None, -1, 0, size**-0.5, 0.0


def attention_backward(size: int, length: int) -> Arguments:
    """The gradients of causal attention."""
    q, k, v = attention(size, length)
    rows = wide(*q.shape[:-1])
    options = -1, 0, size**-0.5, 0.0
    grad, out = q.clone(), q.clone()
    return grad, rows, q, k, v, None, None, out, rows.clone(), *options


def attention_products(size: int, length: int) -> int:
    """Bytes of the product of each query's gradient and result, written and read; `grad` again.

    A key's gradient begins with these products of all queries, so a launch before reads `grad`.
    """
    queries = HEADS // 8 * length
    return 2 * 4 * queries + 2 * queries * size


def decoding(heads: int, size: int, keys: int) -> Arguments:
    """One query of each head against a cache."""
    k, v = (new(1, KEY_HEADS, keys, size) for _ in range(2))
    length = torch.full((1,), keys)
    return new(1, heads, 1, size), k, v, length, None, None, None, None, -1, size**-0.5, 0.0


def floats(rows: int, features: int) -> Arguments:
    """Activations that are wider than the weight."""
    return wide(rows, WIDTH), new(features, WIDTH), None


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


def routing(tokens: int) -> Arguments:
    """8 of 128 experts."""
    return new(tokens, 128), 8, None, False, 1, 1, 1, True, 1.0


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


ROWS = "8192 x 4096"


def _cases() -> Iterator[Case]:
    def by_rows(
        operator: str, make: Callable[[int], Arguments], counted: int = 16, sums: int = 0
    ) -> Case:
        return Case(operator, ROWS, make, counted, 8192, partial(column_sums, sums))

    yield by_rows("muladd", elementwise(2, 1.5))
    yield by_rows("mul", elementwise(2))
    yield by_rows("add_out", elementwise(3))
    yield by_rows("exp_add", elementwise(1, 1.5))
    yield by_rows("silu_mul", elementwise(2))
    yield by_rows("silu_mul_backward", elementwise(3))
    yield by_rows("silu_mul_packed", lambda rows: (new(rows, 2 * WIDTH),))
    yield by_rows("silu_mul_packed_backward", lambda rows: (new(rows, WIDTH), new(rows, 2 * WIDTH)))
    yield by_rows("gelu", elementwise(1, False))
    yield by_rows("gelu_backward", elementwise(2, False))
    yield by_rows("gelu_mul", elementwise(2, True))
    yield by_rows("gelu_mul_backward", elementwise(3, True))
    yield by_rows("gelu_mul_packed", lambda rows: (new(rows, 2 * WIDTH), True))
    yield by_rows(
        "gelu_mul_packed_backward", lambda rows: (new(rows, WIDTH), new(rows, 2 * WIDTH), True)
    )
    yield by_rows("rms_norm", norm(1, 1, 1e-6, 0))
    yield Case(
        "rms_norm", "262144 x 64", lambda rows: (new(rows, 64), new(64), 1e-6, 0), 512, 262144
    )
    yield by_rows("rms_norm_backward", norm_backward(2, 1, 0), 48, 1)
    yield by_rows("add_rms_norm", norm(2, 1, 1e-6, 0))
    yield by_rows("add_rms_norm_backward", norm_backward(3, 1, 0), 48, 1)
    yield by_rows("layer_norm", norm(1, 2, 1e-5))
    yield by_rows("layer_norm_backward", norm_backward(2, 2, True), 48, 2)
    yield by_rows("add_layer_norm", norm(2, 2, 1e-5))
    yield by_rows("add_layer_norm_backward", norm_backward(3, 2, True), 48, 2)
    yield Case("cross_entropy", "8192 x 16384", partial(logits, CLASSES), 4, 8192)
    yield Case("cross_entropy", "8192 x 131072", partial(logits, MANY_CLASSES), 1, 8192)
    yield Case(
        "cross_entropy_backward",
        "8192 x 131072",
        lambda rows: (wide(rows), new(rows, MANY_CLASSES)),
        1,
        8192,
    )
    yield Case("rope", "8192 x (32 + 8) x 128", rotated, 16, 8192)
    yield Case("rope_backward", "8192 x (32 + 8) x 128", rotated, 16, 8192)
    yield Case("rope_", "8192 x 32 x 128", rotated_in_place, 16, 8192)
    yield Case("merge_attention", "32 x 8192 x 128", partial(halves, 2), 16, 8192)
    yield Case("merge_attention_backward", "32 x 8192 x 128", partial(halves, 3), 16, 8192)
    for size in (HEAD, SMALL_HEAD):
        what = f"4 + 1 heads x 4096 x {size}"
        own = partial(attention_forward, size), 128, 4096
        yield Case("attention", what, *own, products=True)
        own = partial(attention_backward, size), 128, 4096
        more = partial(attention_products, size)
        yield Case("attention_backward", what, *own, more, products=True)
        for heads in (HEADS, 2 * HEADS):
            what = f"{heads} + {KEY_HEADS} heads, 8192 keys of {size}"
            own = partial(decoding, heads, size), 1024, 8192
            yield Case("attention_decode", what, *own, products=True)
    for rows in (1, 16, 64):
        for operator, make in (("linear", floats), ("linear_int8", int8), ("linear_int4", int4)):
            if rows > FEW_ROWS and operator == "linear":
                continue  # PyTorch's product
            what = f"{rows} x 4096 x 4096"
            yield Case(operator, what, partial(make, rows), 64, 4096, products=True)
    of_row = {
        "linear_int8": WIDTH + 2,
        "linear_int4": WIDTH // CODES_IN_A_BYTE + 4 * WIDTH // GROUP,
    }
    for operator, make in (("linear_int8", int8), ("linear_int4", int4)):
        own = partial(many_rows, make), 64, 2048
        least = partial(decoded, of_row[operator])
        yield Case(operator, "decoding 2048 x 4096", *own, own=least)
    yield Case("route", "8192 tokens, 8 of 128", routing, 64, 8192)
    yield Case("experts", "8 tokens, 4 of 32, 1024 x 512", mixture, 8, 32, between_layers)


CASES = tuple(_cases())
PREDICTED = tuple(case for case in CASES if case.own is None)
