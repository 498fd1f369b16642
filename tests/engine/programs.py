"""Small programs that several tests run."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from fusewheel.engine import Program, ProgramWriter
from torch import Tensor

aten = torch.ops.aten
WIDTH = 8


def gated() -> Program:
    """``silu(linear(x, gate)) * linear(x, up)`` for any number of rows, and the sum with x."""
    writer = ProgramWriter()
    rows = writer.number("size", 0, 0)
    dims = (rows, WIDTH), (WIDTH, 1)
    x = writer.input(torch.float32, *dims)
    gate, up = (writer.input(torch.float32, (WIDTH, WIDTH), (WIDTH, 1)) for _ in range(2))
    wide = [writer.result(torch.float32, *dims) for _ in range(4)]
    writer.step(aten.linear.default, (x, gate, None), (wide[0],), "model.py:1")
    writer.step(aten.linear.default, (x, up, None), (wide[1],), "model.py:2")
    writer.step(torch.ops.fusewheel.silu_mul.default, (wide[0], wide[1]), (wide[2],), "model.py:3")
    writer.step("engine::add", (wide[2], x), (wide[3],), "model.py:4")
    return writer.finish([wide[2], wide[3]])


def gated_inputs(rows: int = 3) -> list[Tensor]:
    return [torch.randn(rows, WIDTH), torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH)]


def gated_reference(x: Tensor, gate: Tensor, up: Tensor) -> list[Tensor]:
    hidden = torch.ops.fusewheel.silu_mul(F.linear(x, gate), F.linear(x, up))
    return [hidden, hidden + x]


def grown() -> Program:
    """A cache [1, 2, length, 4] that grows by a row, and attention of one query to it."""
    writer = ProgramWriter()
    length = writer.number("size", 0, 2)
    more = writer.number("add", length, 1)
    past = writer.input(torch.float32, (1, 2, length, 4), (8, 4, 8, 1))
    new = writer.input(torch.float32, (1, 2, 1, 4), (8, 4, 4, 1))
    both, kept = (writer.result(torch.float32, (1, 2, more, 4), (8, 4, 8, 1)) for _ in range(2))
    writer.step("engine::append", (past, new), (both, kept), "cache.py:9")
    shown = writer.result(torch.float32, (1, 2, 1, 4), (8, 4, 4, 1))
    writer.step("engine::attention", (new, both, both, None), (shown,), "cache.py:10")
    return writer.finish([both, kept, shown])


def joined() -> Program:
    """Keys [1, 2, length, 4] and one more, seen through a transposed view; and half of them."""
    writer = ProgramWriter()
    length = writer.number("size", 0, 2)
    more = writer.number("add", length, 1)
    stride = writer.number("multiply", length, 4)
    keys = writer.input(
        torch.float32, (1, 2, length, 4), (writer.number("multiply", stride, 2), stride, 4, 1)
    )
    new = writer.input(torch.float32, (1, 1, 2, 4), (8, 8, 4, 1))
    shown = writer.view(new, (1, 2, 1, 4), (8, 4, 8, 1))
    wide = writer.number("multiply", more, 4)
    strides = writer.number("multiply", wide, 2), wide, 4, 1
    both = writer.result(torch.float32, (1, 2, more, 4), strides)
    writer.step(aten.cat.default, ([keys, shown], 2), (both,), "cache.py:7")
    second = writer.view(both, (1, 1, more, 4), strides, wide)
    copy = writer.result(torch.float32, (1, 1, more, 4), (wide, wide, 4, 1))
    writer.step(aten.clone.default, (second, torch.contiguous_format), (copy,), "cache.py:8")
    return writer.finish([both, copy])


def layer() -> Program:
    """A layer of a language model for one token: every step that is called with pointers."""
    writer = ProgramWriter()
    ops = torch.ops.fusewheel
    length = writer.number("size", 0, 2)
    more = writer.number("add", length, 1)
    past = writer.input(torch.float32, (1, 1, length, 4), (4, 4, 4, 1))
    shapes = (1, 8), (8,), (8, 8), (4, 8), (1, 4), (8, 8)
    x, gain, wide, narrow, table, last = (
        writer.input(torch.float32, shape, (shape[-1], 1)[-len(shape) :]) for shape in shapes
    )

    def result(*sizes: Any) -> int:
        strides = [writer.number("constant", 1)]
        for size in reversed(sizes[1:]):
            strides.insert(0, writer.number("multiply", strides[0], size))
        return writer.result(torch.float32, sizes, strides)

    normal, query, key = result(1, 8), result(1, 8), result(1, 4)
    writer.step(ops.rms_norm.default, (x, gain, 1e-6, 0), (normal, None))
    writer.step(ops.linear.default, (normal, wide, None), (query,))
    writer.step(ops.linear.default, (normal, narrow, None), (key,))
    heads = writer.view(query, (1, 2, 1, 4), (8, 4, 8, 1))
    head = writer.view(key, (1, 1, 1, 4), (4, 4, 4, 1))
    turned, keys = result(1, 2, 1, 4), result(1, 1, 1, 4)
    writer.step(ops.rope.default, (heads, head, table, table, False, None), (turned, keys))
    both, kept = (writer.result(torch.float32, (1, 1, more, 4), (4, 4, 4, 1)) for _ in range(2))
    writer.step("engine::append", (past, keys), (both, kept))
    shown, out = result(1, 2, 1, 4), result(1, 8)
    writer.step("engine::attention", (turned, both, both, 0.5), (shown,))
    writer.step(ops.linear.default, (writer.view(shown, (1, 8), (8, 1)), last, None), (out,))
    second, total, gated = result(1, 8), result(1, 8), result(1, 8)
    writer.step(ops.add_rms_norm.default, (out, x, gain, 1e-6, 0), (second, total, None))
    writer.step(ops.silu_mul.default, (second, total), (gated,))
    return writer.finish([both, kept, gated])


def layer_inputs(length: int = 70) -> list[Tensor]:
    shapes = (1, 1, length, 4), (1, 8), (8,), (8, 8), (4, 8), (1, 4), (8, 8)
    return [torch.randn(shape) for shape in shapes]
