"""One call of each operator that has kernels of its own.

A case makes its arguments for any number of rows: few to be counted, and as many as a model has for
the prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from cuda_emulated.counts.arguments import (
    CLASSES,
    CODES_IN_A_BYTE,
    FEW_ROWS,
    GROUP,
    GROUPS,
    HEAD,
    HEADS,
    INNER,
    KEY_HEADS,
    MANY_CLASSES,
    OUTER,
    SMALL_HEAD,
    WIDTH,
    attention_backward,
    attention_forward,
    attention_products,
    between_layers,
    column_sums,
    decoded,
    decoded_blocks,
    decoded_groups,
    decoding,
    elementwise,
    floats,
    grouped,
    grouped_backward_weight,
    grouped_backward_x,
    grouped_blocks,
    grouped_blocks_backward,
    halves,
    in_dtype,
    int4,
    int8,
    logits,
    many_rows,
    marked_values,
    mixture,
    mixture_of_blocks,
    new,
    norm,
    norm_backward,
    rotated,
    rotated_in_place,
    rounded,
    rounding,
    routing,
    stored_blocks,
    wide,
)
from fusewheel import ops
from fusewheel.dispatch.operator import Arguments, Operator
from fusewheel.ops.linear._blocks import FORMATS
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

OPERATORS = {operator.name: operator for operator in ops.operators()}


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
    for name, dtype in (("float16", torch.float16), ("float32", torch.float32)):
        make = partial(in_dtype, partial(attention_forward, HEAD), dtype)
        marks = partial(marked_values, HEAD, dtype.itemsize)
        what = f"{name}, 4 + 1 heads x 4096 x {HEAD}"
        yield Case("attention", what, make, 128, 4096, marks, products=True)
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
    for name in FORMATS:
        own = partial(stored_blocks, name), 64, 2048
        least = partial(decoded_blocks, name)
        yield Case("linear_blocks", f"decoding {name} 2048 x 4096", *own, own=least)
    for operator, make, what in (
        ("linear_int8", int8, "rounding 8192 x 4096"),
        ("linear_int4", int4, "rounding 8192 x 4096 by 128"),
    ):
        own = partial(rounding, make), 32, 8192
        yield Case(operator, what, *own, own=partial(rounded, of_row[operator]))
    yield Case("route", "8192 tokens, 8 of 128", routing, 64, 8192)
    yield Case("experts", "8 tokens, 4 of 32, 1024 x 512", mixture, 8, 32, between_layers)
    groups = f"{GROUPS} groups, {INNER} x {OUTER}"
    for operator, make in (
        ("grouped_linear", grouped),
        ("grouped_linear_backward_x", grouped_backward_x),
        ("grouped_linear_backward_weight", grouped_backward_weight),
    ):
        yield Case(operator, f"8192 rows, {groups}", make, 256, 8192, products=True)
    for operator, make in (
        ("grouped_linear_blocks", grouped_blocks),
        ("grouped_linear_blocks_backward", grouped_blocks_backward),
    ):
        what = f"8192 rows, {groups}"
        yield Case(operator, what, make, 256, 8192, decoded_groups, products=True)
    for operator, make in (("grouped_linear", grouped), ("grouped_linear_blocks", grouped_blocks)):
        yield Case(operator, f"8 rows, {groups}", make, 8, 8, products=True)
    what = "8 tokens, 4 of 32, Q4_K, 1024 x 512"
    yield Case("experts", what, mixture_of_blocks, 8, 32, between_layers)


CASES = tuple(_cases())
PREDICTED = tuple(case for case in CASES if case.own is None)
