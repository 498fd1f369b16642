"""Every spelling of the three patterns that is meant to be recognised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from training import wide

assert fusewheel
Tensor = torch.Tensor

SQUARES: dict[str, Callable[[Tensor], Tensor]] = {
    "pow": lambda x: x.pow(2).mean(-1, keepdim=True),
    "pow_float": lambda x: torch.pow(x, 2.0).mean(dim=-1, keepdim=True),
    "power_operator": lambda x: (x**2).mean(-1, True),
    "product": lambda x: (x * x).mean((-1,), keepdim=True),
    "square": lambda x: x.square().mean([x.dim() - 1], keepdim=True),
    "torch_square": lambda x: torch.mean(torch.square(x), -1, keepdim=True),
    "torch_mean": lambda x: torch.mean(x.pow(2), dim=-1, keepdim=True, dtype=torch.float32),
}
ROOTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rsqrt": lambda x, v: x * torch.rsqrt(v + 1e-6),
    "method": lambda x, v: v.add(1e-6).rsqrt().mul(x),
    "eps_first": lambda x, v: x * (1e-6 + v).rsqrt(),
    "power": lambda x, v: x * (v + 1e-6).pow(-0.5),
    "power_operator": lambda x, v: x * (v + 1e-6) ** -0.5,
    "divided": lambda x, v: x / torch.sqrt(v + 1e-6),
    "reciprocal": lambda x, v: x * (v + 1e-6).sqrt().reciprocal(),
    "one_over": lambda x, v: torch.mul(x, 1 / (v + 1e-6).sqrt()),
}


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


@pytest.mark.parametrize("squares", SQUARES)
@pytest.mark.parametrize("root", ["rsqrt"])
def test_squares(compare: Any, squares: str, root: str) -> None:
    def norm(x: Tensor, w: Tensor) -> Tensor:
        h = wide(x)
        return w * ROOTS[root](h, SQUARES[squares](h)).to(x.dtype)

    for dtype in (torch.float32, torch.bfloat16):
        report = compare(norm, _x(3, 5, 16, dtype=dtype), _x(16, dtype=dtype))
        assert report.counts() == {"rms_norm": 1}, report


@pytest.mark.parametrize("root", ROOTS)
def test_roots(compare: Any, root: str) -> None:
    def norm(x: Tensor, w: Tensor) -> Tensor:
        return ROOTS[root](x, SQUARES["pow"](x)) * w

    assert compare(norm, _x(3, 16), _x(16)).counts() == {"rms_norm": 1}


def _statistics(x: Tensor) -> Tensor:
    h = wide(x)
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)


def _llama(x: Tensor, w: Tensor) -> Tensor:
    return w * _statistics(x).to(x.dtype)


def _gemma(x: Tensor, w: Tensor) -> Tensor:
    return (_statistics(x) * (1.0 + wide(w))).type_as(x)


def _olmo(x: Tensor, w: Tensor) -> Tensor:
    return (w * _statistics(x)).to(x.dtype)


def _torch(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


@pytest.mark.parametrize(
    ("norm", "cast"), [(_llama, 0), (_gemma, 1), (_olmo, 2), (_torch, 2)], ids=lambda v: str(v)[:12]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_is_read_off(compare: Any, norm: Any, cast: int, dtype: torch.dtype) -> None:
    x, w = _x(4, 64, dtype=dtype), _x(64, dtype=dtype)
    report = compare(norm, x, w)
    assert report.counts() == {"rms_norm": 1}, report
    calls = [
        node
        for node in compare.graphs[0].graph.nodes
        if node.target is torch.ops.fusewheel.rms_norm.default
    ]
    assert [node.args[2:] for node in calls] == [(1e-5, cast)]
    # Same roundings: at most the odd last digit differs in the forward pass.
    compiled, _ = compare.compile(norm, "eager")
    assert (compiled(x, w) == norm(x, w)).float().mean() > 0.98


@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("result", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("x", [torch.float32, torch.bfloat16], ids=str)
def test_mixed_dtypes(
    compare: Any, x: torch.dtype, weight: torch.dtype, result: torch.dtype
) -> None:
    """What is float32 around a norm stays outside of it."""

    def norm(x: Tensor, w: Tensor) -> Tensor:
        scaled = wide(w) * _statistics(x)
        return scaled if scaled.dtype == torch.float64 else scaled.to(result)

    args = _x(4, 16, dtype=x), _x(16, dtype=weight)
    report = compare(norm, *args)
    assert report.counts() == {"rms_norm": 1}, report
    compiled, _ = compare.compile(norm, "eager")
    if result != torch.float32:
        assert (compiled(*args) == norm(*args)).float().mean() > 0.9


@pytest.mark.parametrize("norm", [_olmo, _gemma, _torch], ids=["weight", "one_plus", "function"])
def test_float64(compare: Any, norm: Any) -> None:
    """Statistics in float64 are what the operator computes for float64."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        y = _torch(x, w) if norm is _torch else h * (1 + w) if norm is _gemma else w * h
        return F.silu(y) * x

    args = _x(3, 16, dtype=torch.float64), _x(16, dtype=torch.float64)
    assert compare(f, *args).count() == 2


def test_default_epsilon(compare: Any) -> None:
    report = compare(lambda x, w: F.rms_norm(x * 1e-3, (16,), w), _x(3, 16), _x(16))
    assert report.counts() == {"rms_norm": 1}


GATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "functional": lambda g, u: F.silu(g) * u,
    "swapped": lambda g, u: u * F.silu(g),
    "method": lambda g, u: F.silu(g).mul(u),
    "torch_mul": lambda g, u: torch.mul(u, F.silu(g)),
    "aten": lambda g, u: torch.ops.aten.mul.Tensor(torch.ops.aten.silu.default(g), u),
    "module": lambda g, u: torch.nn.SiLU()(g) * u,
    "spelled": lambda g, u: g * torch.sigmoid(g) * u,
    "spelled_method": lambda g, u: u * (g.sigmoid() * g),
    "private_inplace": lambda g, u: F.silu(g + 0.5, inplace=True) * u,
    "chunked": lambda g, u: (lambda a, b: F.silu(a) * b)(*torch.cat((g, u), 0).chunk(2, 0)),
    "of_itself": lambda g, u: F.silu(g) * g + u,
}


@pytest.mark.parametrize("gate", GATES)
def test_gates(compare: Any, gate: str) -> None:
    report = compare(GATES[gate], _x(3, 16), _x(3, 16))
    assert report.counts() == {"silu_mul": 1}, report


def _rotate_slices(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _rotate_chunk(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([b.neg(), a], -1)


def _rotate_split(x: Tensor) -> Tensor:
    a, b = torch.split(x, x.shape[-1] // 2, -1)
    return torch.concat((torch.neg(b), a), 3)


def _rotate_narrow(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x.narrow(-1, half, half), torch.narrow(x, 3, 0, half)), -1)


def _rotate_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)


def _rotate_pairs_reshape(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).reshape(x.shape)


def rope(rotate: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Rotary embedding as models write it."""

    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return q * cos + rotate(q) * sin, k * cos + rotate(k) * sin

    return apply


@pytest.mark.parametrize(
    "rotate",
    [_rotate_slices, _rotate_chunk, _rotate_split, _rotate_narrow, _rotate_pairs,
     _rotate_pairs_reshape],
)  # fmt: skip
def test_rotations(compare: Any, rotate: Any) -> None:
    q, k, table = _x(2, 4, 6, 8), _x(2, 2, 6, 8), torch.randn(2, 6, 8)
    report = compare(rope(rotate), q, k, table.cos(), table.sin())
    assert report.counts() == {"rope": 1}, report


TABLES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "one_batch": ((1, 6, 8), lambda t: t[:, None]),
    "two_dimensions": ((6, 8), lambda t: t),
    "four_dimensions": ((2, 1, 6, 8), lambda t: t),
    "one_head": ((1, 6, 8), lambda t: t),
}


@pytest.mark.parametrize("table", TABLES)
def test_tables(compare: Any, table: str) -> None:
    shape, view = TABLES[table]

    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        q_out = _rotate_slices(q) * view(sin) + q * view(cos)
        return q_out, torch.add(view(cos) * k, view(sin).mul(_rotate_slices(k)))

    report = compare(apply, _x(2, 4, 6, 8), _x(2, 2, 6, 8), torch.randn(shape), torch.randn(shape))
    assert report.counts() == {"rope": 1}, report


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rope_with_wider_tables(compare: Any, dtype: torch.dtype) -> None:
    """``bfloat16 * float32`` is float32: the cast that eager does silently is spelled out."""
    q, k, table = _x(2, 4, 6, 8, dtype=dtype), _x(2, 2, 6, 8, dtype=dtype), torch.randn(2, 6, 8)
    report = compare(rope(_rotate_slices), q.detach(), k.detach(), table.cos(), table.sin())
    assert report.counts() == {"rope": 1}, report
    report = compare(rope(_rotate_slices), q, k, table.cos(), table.sin())
    assert report.counts() == {"rope": 1}, report


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rope_in_float32(compare: Any, dtype: torch.dtype) -> None:
    """Ernie rotates first and widens then."""

    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
        tables = cos.unsqueeze(1), sin.unsqueeze(1)
        rotated = [wide(x) * tables[0] + wide(_rotate_pairs(x)) * tables[1] for x in (q, k)]
        return [w.to(x.dtype) for w, x in zip(rotated, (q, k), strict=True)]

    q, k, table = _x(2, 4, 6, 8, dtype=dtype), _x(2, 2, 6, 8, dtype=dtype), torch.randn(2, 6, 8)
    report = compare(apply, q.detach(), k.detach(), table.cos(), table.sin())
    assert report.counts() == {"rope": 1}, report
    report = compare(apply, q, k, table.cos(), table.sin())
