"""What the table of attention compares: the same attention by fusewheel and by PyTorch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import fusewheel
import torch
from benchmarks.goals import SDPA
from benchmarks.results import DIRECTIONS
from fusewheel.engine.attention import STEP
from fusewheel.engine.program import ProgramWriter
from torch import Tensor
from torch.nn import functional as F

OWN, FLEX = "fusewheel", "flex"
WINDOW = 256
# Lengths of packed sequences, in the order of their memory.
PACKED = tuple(range(64, 1025, 64))
# Of the case whose memory counts, and of the cache of one query.
LONG, CACHED = 8192, 4096
# Heads, heads of keys and the size of a head, where programs have steps of one query; their number.
HEADS = (9, 3, 64), (12, 12, 64), (32, 32, 128), (4, 1, 256)
STEPS = 8
# Copies of a cache are larger than any cache of the processor.
COPIED = 512 * 10**6

Runs = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """One attention.

    Attributes:
        kind: of the case: what decides its goals.
        title: the kind and the sizes.
        direction: "fwd" or "fwd+bwd".
        runs: what computes it, by name. Of names that begin alike the fastest counts.
        flops: of the products that are needed, for the scores that are seen.
        read: bytes that must be read from memory; 0 where products decide.
        inputs: the tensors that are there before.
    """

    kind: str
    title: str
    direction: str
    runs: Runs
    flops: int
    read: int = 0
    inputs: tuple[Tensor, ...] = field(default=(), repr=False)


def cases_of(
    kind: str,
    dtype: torch.dtype,
    lengths: Sequence[int],
    flex: bool,
    directions: Sequence[str] = DIRECTIONS,
) -> Iterator[Case]:
    """Those of one kind in one dtype."""
    if kind == "decode":
        yield _decode(dtype)
        yield _decode(dtype, int8=True)
        return
    if kind == "token":
        for heads, length in itertools.product(HEADS, (16, 256)):
            yield _token(dtype, length, *heads)
        return
    for direction in directions:
        if kind == "causal":
            for length, (heads, kv_heads, size) in itertools.product(
                lengths, ((9, 3, 64), (8, 2, 128))
            ):
                q, k, v = _inputs(dtype, 1, heads, kv_heads, length, size)
                yield _whole(kind, direction, q, k, v, None, flex)
        elif kind == "window":
            q, k, v = _inputs(dtype, 1, 9, 3, max(lengths), 64)
            yield _whole(kind, direction, q, k, v, WINDOW, flex)
        elif kind == "small":
            q, k, v = _inputs(dtype, 8, 8, 8, 64, 64)
            yield _whole(kind, direction, q, k, v, None, False)
        elif kind == "packed":
            yield _packed(direction, dtype)
    if kind == "long":
        q, k, v = _inputs(dtype, 1, 9, 3, LONG, 64)
        yield _whole(kind, "fwd+bwd", q, k, v, None, False)


KINDS = ("causal", "window", "packed", "decode", "token", "small", "long")


def _inputs(
    dtype: torch.dtype, batch: int, heads: int, kv_heads: int, length: int, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    def make(heads: int) -> Tensor:
        return torch.randn(batch, heads, length, size).to(dtype).requires_grad_()

    return make(heads), make(kv_heads), make(kv_heads)


def _timed(call: Callable[..., Tensor], direction: str, *inputs: Tensor) -> Callable[[], Any]:
    if direction == "fwd":
        # Without a gradient to come: flex_attention on a CPU refuses inputs that require one.
        given = [t.detach() for t in inputs]
        return torch.no_grad()(lambda: call(*given))
    grad = torch.ones_like(call(*inputs))
    return lambda: torch.autograd.grad(call(*inputs), inputs, grad)


def _flops(direction: str, seen: int, size: int) -> int:
    """Two products of the scores, and five in the backward pass."""
    return (2 if direction == "fwd" else 7) * 2 * seen * size


def _whole(
    kind: str, direction: str, q: Tensor, k: Tensor, v: Tensor, window: int | None, flex: bool
) -> Case:
    batch, heads, length, size = q.shape
    group = heads // k.shape[1]
    key = torch.arange(length)
    seen = key <= key.unsqueeze(-1)
    if window is not None:
        seen &= key > key.unsqueeze(-1) - window
    how: dict[str, Any] = {"attn_mask": seen} if window is not None else {"is_causal": True}

    def own(q: Tensor, k: Tensor, v: Tensor) -> Any:
        limits = None if window is None else (window - 1, 0)
        return fusewheel.attention(q, k, v, causal=True, window=limits)

    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=group > 1, **how)

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, **how)

    calls: dict[str, Callable[..., Any]] = {OWN: own, SDPA: grouped}
    if group > 1:
        calls[f"{SDPA}, repeated"] = repeated
    if flex and direction == "fwd":
        calls[FLEX] = _flex(window, length, group > 1)
    return Case(
        kind=kind,
        title=f"{kind} {batch}x{heads}:{k.shape[1]}x{length}x{size}",
        direction=direction,
        runs={name: _timed(call, direction, q, k, v) for name, call in calls.items()},
        flops=_flops(direction, batch * heads * int(seen.sum()), size),
        inputs=(q, k, v),
    )


def _flex(window: int | None, length: int, grouped: bool) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        causal = key <= query
        return causal if window is None else causal & (key > query - window)

    mask = create_block_mask(seen, None, None, length, length, device="cpu")
    compiled = torch.compile(flex_attention)
    return functools.partial(compiled, block_mask=mask, enable_gqa=grouped)


def _packed(direction: str, dtype: torch.dtype) -> Case:
    """Sequences one after the other, against as many that are padded to the longest."""
    heads, kv_heads, size = 9, 3, 64
    total = sum(PACKED)
    q, k, v = (
        torch.randn(total, n, size).to(dtype).requires_grad_() for n in (heads, kv_heads, kv_heads)
    )
    padded = _inputs(dtype, len(PACKED), heads, kv_heads, max(PACKED), size)
    ends = torch.tensor([0, *itertools.accumulate(PACKED)], dtype=torch.int32)

    def own(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return fusewheel.attention_varlen(q, k, v, ends, ends, causal=True)

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    seen = sum(length * (length + 1) // 2 for length in PACKED)
    return Case(
        kind="packed",
        title=f"packed {len(PACKED)} of {min(PACKED)} to {max(PACKED)}, {heads}:{kv_heads}x{size}",
        direction=direction,
        runs={
            OWN: _timed(own, direction, q, k, v),
            SDPA: _timed(theirs, direction, *padded),
        },
        flops=_flops(direction, heads * seen, size),
        inputs=(q, k, v),
    )


def _decode(dtype: torch.dtype, int8: bool = False) -> Case:
    """One query. Each call takes the next of several caches, so that it reads them from memory.

    A cache in int8 has scales in float32. PyTorch's attention reads one in the dtype of the query.
    """
    heads, kv_heads, length, size = 32, 8, CACHED, 128
    q = torch.randn(1, heads, size).to(dtype)
    lengths = torch.tensor([length], dtype=torch.int32)
    plain = torch.randn(1, kv_heads, length, size)
    scales = plain.abs().amax(-1) / 127
    whole = plain = plain.to(dtype)
    if int8:
        whole = (plain / scales.unsqueeze(-1)).round().to(torch.int8)
        plain = (whole * scales.unsqueeze(-1)).to(dtype)
    read = 2 * whole.nbytes
    named = {"k_scales": scales, "v_scales": scales} if int8 else {}

    def caches(tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        count = COPIED // (4 * tensor.nbytes) + 1
        return itertools.cycle([(tensor.clone(), tensor.clone()) for _ in range(count)])

    own, theirs = caches(whole), caches(plain)
    return Case(
        kind="decode",
        title=f"decode {'int8 ' if int8 else ''}1x{heads}:{kv_heads}x{length}x{size}",
        direction="fwd",
        runs={
            OWN: lambda: fusewheel.attention_decode(q, *next(own), lengths, **named),
            SDPA: lambda: F.scaled_dot_product_attention(
                q.unsqueeze(2), *next(theirs), enable_gqa=True
            ),
        },
        flops=4 * heads * length * size,
        read=read,
    )


def _token(dtype: torch.dtype, length: int, heads: int, kv_heads: int, size: int) -> Case:
    """One query, as a step of a program that has several of it."""
    q, k, v = (
        torch.randn(1, n, rows, size).to(dtype)
        for n, rows in ((heads, 1), (kv_heads, length), (kv_heads, length))
    )

    def program(step: str, *options: Any) -> Callable[[], Any]:
        writer = ProgramWriter()
        given = [writer.input(t.dtype, t.shape, t.stride()) for t in (q, k, v)]
        results = [writer.result(dtype, q.shape, q.stride()) for _ in range(STEPS)]
        for result in results:
            writer.step(step, (*given, *options), (result,), "attention")
        return functools.partial(writer.finish(results), q, k, v)

    theirs = None, 0.0, False, None, heads != kv_heads
    return Case(
        kind="token",
        title=f"token, {STEPS} steps {heads}:{kv_heads}x{length}x{size}",
        direction="fwd",
        runs={
            OWN: program(STEP, None),
            SDPA: program("aten::scaled_dot_product_attention", *theirs),
        },
        flops=STEPS * 4 * heads * length * size,
    )
