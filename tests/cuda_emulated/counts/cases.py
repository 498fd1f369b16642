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
    FLOAT_PARTS,
    GROUP,
    GROUPS,
    HEAD,
    HEADS,
    INNER,
    KEY_HEADS,
    MANY_CLASSES,
    MANY_EXPERTS,
    OUTER,
    SLICE,
    SLICES,
    WEIGHT_PARTS,
    WIDTH,
    between_layers,
    column_sums,
    decoded,
    decoded_blocks,
    decoded_floats,
    decoded_groups,
    decoded_once,
    elementwise,
    floats,
    grouped,
    grouped_backward_weight,
    grouped_backward_x,
    grouped_blocks,
    grouped_blocks_backward,
    halves,
    int4,
    int4_backward,
    int8,
    int8_backward,
    logits,
    many_rows,
    mixture,
    mixture_of_blocks,
    new,
    norm,
    norm_backward,
    one_of_blocks,
    one_of_blocks_backward,
    rotated,
    rotated_in_place,
    rounded,
    rounding,
    routing,
    row_of_blocks,
    sliced_losses,
    stored_blocks,
    sums_of_slices,
    wide,
)
from cuda_emulated.counts.attention_arguments import (
    LARGE_HEAD,
    SEQUENCES,
    SMALL_HEAD,
    attention_backward,
    attention_forward,
    attention_products,
    attention_with_sinks,
    decoding,
    in_dtype,
    marked_values,
    packed_sequences,
    packed_sequences_backward,
    sink_sums,
)
from cuda_emulated.counts.launches import CACHE
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
        products: how many multiplications it does for each that is needed. Their time is predicted
            too, unless it is 0.
        own: the least bytes of its kernels, where PyTorch multiplies what they write: that is not
            counted, and no time is predicted.
        kernel: the only one whose launches are counted, as `own` says; empty for all of them.
        cache: what the caches of a large GPU hold for each block, in bytes.
    """

    operator: str
    what: str
    make: Callable[[int], Arguments]
    counted: int
    full: int
    partials: Callable[[int], int] = lambda rows: 0
    products: float = 0
    own: Callable[[int], int] | None = None
    kernel: str = ""
    cache: int = CACHE

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
            return round(self.products * int(self.declared.flops(*self.make(rows))))


def _bytes(tensor: Tensor) -> int:
    """Of the different elements."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride != 0 else 1
    return count * tensor.element_size()


ROWS = "8192 x 4096"
CACHE_OF_TWO = 192 << 10
"""Of two blocks a multiprocessor each has 194 KB of the second cache on an A100, or more."""


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
    what = f"sums of {SLICES} slices, 4096 x {SLICE}"
    own = sliced_losses, 64, 4096
    yield Case("linear_cross_entropy", what, *own, own=sums_of_slices, kernel="add_to_sum")
    yield Case("rope", "8192 x (32 + 8) x 128", rotated, 16, 8192)
    yield Case("rope_backward", "8192 x (32 + 8) x 128", rotated, 16, 8192)
    yield Case("rope_", "8192 x 32 x 128", rotated_in_place, 16, 8192)
    yield Case("merge_attention", "32 x 8192 x 128", partial(halves, 2), 16, 8192)
    yield Case("merge_attention_backward", "32 x 8192 x 128", partial(halves, 3), 16, 8192)
    for size in (HEAD, SMALL_HEAD):
        what = f"4 + 1 heads x 4096 x {size}"
        own = partial(attention_forward, size), 128, 4096
        yield Case("attention", what, *own, products=1)
        own = partial(attention_backward, size), 128, 4096
        more = partial(attention_products, size)
        yield Case("attention_backward", what, *own, more, products=7 / 5)
        for heads in (HEADS, 2 * HEADS):
            what = f"{heads} + {KEY_HEADS} heads, 8192 keys of {size}"
            own = partial(decoding, heads, size), 1024, 8192
            yield Case("attention_decode", what, *own, products=1)
    for size in (HEAD, SMALL_HEAD):
        make = partial(in_dtype, partial(attention_forward, size), torch.float16)
        what = f"float16, 4 + 1 heads x 4096 x {size}"
        yield Case("attention", what, make, 128, 4096, products=3 / 2)
    for name, dtype, size in (
        ("float16", torch.float16, LARGE_HEAD),
        ("float32", torch.float32, HEAD),
    ):
        make = partial(in_dtype, partial(attention_forward, size), dtype)
        marks = partial(marked_values, size, dtype.itemsize)
        what = f"{name}, 4 + 1 heads x 4096 x {size}"
        again = 3 / 2 if size == LARGE_HEAD else 1
        yield Case("attention", what, make, 128, 4096, marks, products=again)
    make = partial(in_dtype, partial(attention_backward, HEAD), torch.float32)
    products = partial(attention_products, HEAD, element_size=4)
    own = make, 128, 4096, products
    yield Case("attention_backward", what, *own, products=8 / 5, cache=CACHE_OF_TWO)
    sinks = partial(attention_with_sinks, HEAD)
    what = f"sinks of 4 heads, 4096 x {HEAD}"
    own = sinks, 256, 4096
    yield Case("attention_backward", what, *own, own=sink_sums, kernel="sink_gradient")
    what = f"{SEQUENCES} sequences, 4 + 1 heads x 4096 x {HEAD}"
    make = partial(packed_sequences, HEAD)
    # What is known without the bounds would be the products of a single sequence.
    yield Case("attention_varlen", what, make, 512, 4096, products=1 / SEQUENCES)
    own = partial(packed_sequences_backward, HEAD), 512, 4096, partial(attention_products, HEAD)
    yield Case("attention_varlen_backward", what, *own, products=7 / 5 / SEQUENCES)
    for rows in (1, 16, 64):
        for operator, make in (("linear", floats), ("linear_int8", int8), ("linear_int4", int4)):
            what = f"{rows} x 4096 x 4096"
            parts = FLOAT_PARTS if operator == "linear" and rows >= FEW_ROWS else 1
            yield Case(operator, what, partial(make, rows), 64, 4096, products=parts)
    make = partial(floats, FEW_ROWS, dtype=torch.float16)
    what = f"float16, {FEW_ROWS} x 4096 x 4096"
    yield Case("linear", what, make, 64, 4096, products=2 * FLOAT_PARTS)
    of_row = {
        "linear_int8": WIDTH + 2,
        "linear_int4": WIDTH // CODES_IN_A_BYTE + 4 * WIDTH // GROUP,
    }
    for operator, make in (("linear_int8", int8), ("linear_int4", int4)):
        own = partial(many_rows, make), 64, 2048
        least = partial(decoded, of_row[operator])
        yield Case(operator, "decoding 2048 x 4096", *own, own=least)
    for name in ("Q4_K", "Q6_K"):
        own = partial(row_of_blocks, name), 64, 4096
        yield Case("linear_blocks", f"1 x 4096 x 4096, {name}", *own, products=1)
    for name in FORMATS:
        own = partial(stored_blocks, name), 64, 2048
        least = partial(decoded_blocks, name)
        yield Case("linear_blocks", f"decoding {name} 2048 x 4096", *own, own=least)
    for operator, make in (
        ("linear_blocks", one_of_blocks),
        ("linear_blocks_backward", one_of_blocks_backward),
        ("linear_int8_backward", int8_backward),
        ("linear_int4_backward", int4_backward),
    ):
        what = f"8192 x {INNER} x {OUTER}"
        # A decoded weight is a sum of parts, and a number of float16 of two.
        yield Case(operator, what, make, 128, 8192, decoded_once, products=WEIGHT_PARTS)
        own = partial(in_dtype, make, torch.float16), 128, 8192, decoded_once
        yield Case(operator, f"float16, {what}", *own, products=2 * WEIGHT_PARTS)
    for operator, make, what in (
        ("linear_int8", int8, "rounding 8192 x 4096"),
        ("linear_int4", int4, "rounding 8192 x 4096 by 128"),
    ):
        own = partial(rounding, make), 32, 8192
        yield Case(operator, what, *own, own=partial(rounded, of_row[operator]))
    yield Case("route", "8192 tokens, 8 of 128", partial(routing, 128), 64, 8192)
    yield Case("route", "8192 tokens, 8 of 8192", partial(routing, MANY_EXPERTS), 8, 8192)
    yield Case("experts", "8 tokens, 4 of 32, 1024 x 512", mixture, 8, 32, between_layers)
    groups = f"{GROUPS} groups, {INNER} x {OUTER}"
    for operator, make in (
        ("grouped_linear", grouped),
        ("grouped_linear_backward_x", grouped_backward_x),
        ("grouped_linear_backward_weight", grouped_backward_weight),
    ):
        yield Case(operator, f"8192 rows, {groups}", make, 256, 8192, products=1)
    for operator, make in (
        ("grouped_linear_blocks", grouped_blocks),
        ("grouped_linear_blocks_backward", grouped_blocks_backward),
    ):
        what = f"8192 rows, {groups}"
        own = partial(make, new=new), 256, 8192, decoded_groups
        yield Case(operator, what, *own, products=WEIGHT_PARTS)
        own = partial(in_dtype, make, torch.float16), 256, 8192, decoded_groups
        yield Case(operator, f"float16, {what}", *own, products=2 * WEIGHT_PARTS)
        yield Case(operator, f"float32, {what}", make, 256, 8192, decoded_floats, products=1)
    for operator, make in (("grouped_linear", grouped), ("grouped_linear_blocks", grouped_blocks)):
        yield Case(operator, f"8 rows, {groups}", make, 8, 8, products=1)
    what = "8 tokens, 4 of 32, Q4_K, 1024 x 512"
    yield Case("experts", what, mixture_of_blocks, 8, 32, between_layers)


CASES = tuple(_cases())
PREDICTED = tuple(case for case in CASES if case.own is None)
