"""The block of experts: values and gradients against the loop over experts that models write."""

from __future__ import annotations

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from oracle import assert_program_as_good_as_eager
from torch.nn import functional

ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def loop(x, indices, weights, gate_up, down, gate_up_bias, down_bias, activation):
    """As models of transformers write it."""
    y = torch.zeros_like(x)
    for e in range(len(gate_up)):
        token, place = torch.where(indices == e)
        hidden = functional.linear(x[token], gate_up[e], gate_up_bias[e])
        gate, up = hidden.chunk(2, -1)
        out = functional.linear(ACTIVATIONS[activation](gate) * up, down[e], down_bias[e])
        own = weights[token, place, None].to(x.dtype)
        y = y.index_add(0, token, (out * own).to(y.dtype))
    return y


def case(dtype, tokens=9, experts=5, k=3, hidden=24, inner=20):
    make = Make(dtype, requires_grad=True)
    scores = Make(seed=1)(tokens, experts)
    scores[:, 2] = -9  # nobody wants this one
    weights, indices = fusewheel.route(scores, k)
    floats = (
        make(tokens, hidden),
        weights.to(dtype).requires_grad_(),
        make(experts, 2 * inner, hidden, scale=0.2),
        make(experts, hidden, inner, scale=0.2),
        make(experts, 2 * inner),
        make(experts, hidden),
    )
    return indices, floats


def results(function, indices, floats, activation):
    x, weights, *rest = (t.detach().requires_grad_() for t in floats)
    y = function(x, indices, weights, *rest, activation)
    leaves = (x, weights, *rest)
    generator = torch.Generator().manual_seed(3)
    grad = torch.randn(y.shape, generator=generator).to(torch.bfloat16).to(y.dtype)
    return (y.detach(), *torch.autograd.grad(y, leaves, grad))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_and_gradients(activation, dtype):
    indices, floats = case(dtype)
    got = results(fusewheel.experts, indices, floats, activation)
    eager = results(loop, indices, floats, activation)
    exact = results(loop, indices, [t.double() for t in floats], activation)
    names = ("y", "x", "weights", "gate_up", "down", "gate_up_bias", "down_bias")
    for name, *values in zip(names, got, eager, exact, strict=True):
        assert_program_as_good_as_eager(*values, what=name)


def test_a_missing_expert_gives_zero():
    """As on a device that has only some of the experts."""
    indices, floats = case(torch.float32, experts=4, k=2)
    x, weights, *rest = (t.detach() for t in floats)
    everything = fusewheel.experts(x, indices, weights, *rest)
    halves = []
    for first, outside in ((0, 2), (2, -1)):
        own = torch.where((indices >= first) & (indices < first + 2), indices - first, outside)
        part = [t[first : first + 2] for t in rest]
        halves.append(fusewheel.experts(x, own, weights, *part))
    torch.testing.assert_close(sum(halves), everything)


def test_no_tokens():
    indices, floats = case(torch.float32)
    x, weights, *rest = floats
    y = fusewheel.experts(x[:0], indices[:0], weights[:0], *rest)
    assert y.shape == (0, 24)
    y.sum().backward()
    assert rest[0].grad.abs().sum() == 0


def test_the_same_bits_in_each_run():
    indices, floats = case(torch.bfloat16, tokens=40)
    first, again = (results(fusewheel.experts, indices, floats, "silu") for _ in range(2))
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)


def test_under_torch_func():
    indices, floats = case(torch.float64, tokens=3)
    x, weights, *rest = (t.detach() for t in floats)

    def block(x):
        return fusewheel.experts(x, indices, weights, *rest).sum()

    leaf = x.clone().requires_grad_()
    block(leaf).backward()
    torch.testing.assert_close(torch.func.grad(block)(x), leaf.grad)
    tangent = torch.ones_like(x)
    _, forward = torch.func.jvp(block, (x,), (tangent,))
    torch.testing.assert_close(forward, leaf.grad.sum())


def test_second_derivatives():
    indices, floats = case(torch.float64, tokens=3, hidden=4, inner=3)
    x, weights, *rest = (t.detach() for t in floats)
    values = (x.requires_grad_(), weights.requires_grad_(), rest[1].requires_grad_())

    def block(x, weights, down):
        return fusewheel.experts(x, indices, weights, rest[0], down, *rest[2:])

    assert torch.autograd.gradgradcheck(block, values)


def test_another_routing_compiles_nothing_new():
    indices, floats = case(torch.float32)
    x, weights, *rest = (t.detach() for t in floats)
    torch._dynamo.reset()
    compiled = torch.compile(fusewheel.experts, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for turn in range(3):
            own = indices.roll(turn, 0)
            want = fusewheel.experts(x, own, weights, *rest)
            torch.testing.assert_close(compiled(x, own, weights, *rest), want)


def test_bad_arguments():
    indices, floats = case(torch.float32)
    x, weights, *rest = floats
    with pytest.raises(ValueError, match=r"activation must be 'silu', .*got 'relu'"):
        fusewheel.experts(x, indices, weights, *rest, activation="relu")
    with pytest.raises(RuntimeError, match="indices must be int32 or int64, got float32"):
        fusewheel.experts(x, indices.float(), weights, *rest)
    with pytest.raises(RuntimeError, match=r"indices must have shape \[9, k\].*got \[8, 3\]"):
        fusewheel.experts(x, indices[1:], weights, *rest)
    with pytest.raises(RuntimeError, match=r"weights must have shape \[9, 3\].*got \[9, 2\]"):
        fusewheel.experts(x, indices, weights[:, 1:], *rest)
    with pytest.raises(RuntimeError, match=r"x must have shape \[tokens, features\], got \[24\]"):
        fusewheel.experts(x[0], indices, weights, *rest)
