"""The example of ring attention computes attention, and its gradients."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from group import SIZE, Check
from oracle import DTYPES, assert_program_as_good_as_eager

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/distributed/ring_attention.py"
NAMES = [f"{dtype}, {causal}" for dtype in DTYPES for causal in (False, True)]


@pytest.mark.parametrize("name", NAMES)
def test_is_attention_to_the_whole_sequence(name: str, passed):
    passed(name)


def checks() -> Iterator[Check]:
    spec = importlib.util.spec_from_file_location("ring_attention", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for dtype in DTYPES:
        for causal in (False, True):
            yield f"{dtype}, {causal}", partial(check, example, dtype, causal)


def check(example, dtype: torch.dtype, causal: bool) -> None:
    generator = torch.Generator().manual_seed(81)
    whole = [torch.randn(2, 3, 16 * SIZE, 8, generator=generator).to(dtype) for _ in range(4)]
    rank = torch.distributed.get_rank()

    def evaluate(tensors, attention):
        q, k, v, grad = tensors
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        out = attention(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, grad)

    def plain(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    pieces = [t.chunk(SIZE, 2)[rank] for t in whole]
    got = evaluate(pieces, lambda q, k, v: example.ring_attention(q, k, v, causal))
    eager = evaluate(whole, plain)
    exact = evaluate([t.double() for t in whole], plain)
    for k, (a, b, c) in enumerate(zip(got, eager, exact, strict=True)):
        b, c = (t.chunk(SIZE, 2)[rank] for t in (b, c))
        assert_program_as_good_as_eager(a, b, c, f"result {k}")
