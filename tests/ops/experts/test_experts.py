"""The block of experts: values and gradients against the loop over experts that models write."""

from __future__ import annotations

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fusewheel.ops.experts._experts import blocks_of
from fusewheel.ops.linear._blocks import FORMATS
from fuzz.draw import Draw
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
    torch.compiler.reset()
    compiled = torch.compile(fusewheel.experts, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for turn in range(3):
            own = indices.roll(turn, 0)
            want = fusewheel.experts(x, own, weights, *rest)
            torch.testing.assert_close(compiled(x, own, weights, *rest), want)


@pytest.mark.parametrize("tokens", [9, 8])
def test_bad_arguments(tokens):
    """In the same words by one operator, which checks itself, as by several."""
    indices, floats = case(torch.float32, tokens)
    floats = [t.detach() for t in floats]
    x, weights, *rest = floats
    with pytest.raises(ValueError, match=r"activation must be 'silu', .*got 'relu'"):
        fusewheel.experts(x, indices, weights, *rest, activation="relu")
    with pytest.raises(RuntimeError, match="indices must be int32 or int64, got float32"):
        fusewheel.experts(x, indices.float(), weights, *rest)
    with pytest.raises(RuntimeError, match=rf"indices must have shape \[{tokens}, k\].*, 3\]"):
        fusewheel.experts(x, indices[1:], weights, *rest)
    with pytest.raises(RuntimeError, match=rf"weights must have shape \[{tokens}, 3\].*, 2\]"):
        fusewheel.experts(x, indices, weights[:, 1:], *rest)
    with pytest.raises(RuntimeError, match=r"x must have shape \[tokens, features\], got \[24\]"):
        fusewheel.experts(x[0], indices, weights, *rest)


def operators_of(function) -> set[str]:
    with torch.profiler.profile() as profile:
        function()
    return {e.name for e in profile.events() if e.name.startswith("fusewheel::")}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("tokens", [1, 8])
def test_one_call_of_few_tokens(activation, tokens, dtype):
    indices, floats = case(dtype, tokens)
    floats = [t.detach() for t in floats]
    got = fusewheel.experts(floats[0], indices, *floats[1:], activation)
    eager = loop(floats[0], indices, *floats[1:], activation)
    wide = [t.double() for t in floats]
    exact = loop(wide[0], indices, *wide[1:], activation)
    assert_program_as_good_as_eager(got, eager, exact)


@pytest.mark.parametrize("name", [None, "Q4_1", "Q6_K", "NF4"])
def test_a_token_with_one_expert_has_the_bits_of_single_layers(name, dtype):
    """A sum of one product by 1 is exact."""
    if name is None:
        weights = Make(dtype)(3, 512, 256, scale=0.1), 0, None, Make(dtype)(3, 256, 256), 0, None
    else:
        make, count = Make(), 256 // FORMATS[name].weights
        first, last = (blocks_of(make, name, 3, rows, count) for rows in (512, 256))
        weights = *first, None, *last, None
    x, ones = Make(dtype)(4, 256), torch.ones(4, 1, dtype=dtype)
    indices = torch.tensor([[2], [0], [2], [-1]])
    got = torch.ops.fusewheel.experts(x, indices, ones, *weights, 0)
    ends = torch.tensor([1, 1, 3])
    order = torch.tensor([1, 0, 2])

    def layer(rows, weight, kind, bias):
        if kind == 0:
            return torch.ops.fusewheel.grouped_linear(rows, weight, ends, bias)
        return torch.ops.fusewheel.grouped_linear_blocks(rows, weight, kind, ends, bias)

    hidden = fusewheel.silu_mul_packed(layer(x[order], *weights[:3]))
    want = torch.zeros_like(x)
    want[order] = layer(hidden, *weights[3:])
    assert torch.equal(got, want)


def test_the_same_bits_for_any_number_of_threads():
    indices, floats = case(torch.float32, 5, hidden=300, inner=700)
    x, weights, *rest = (t.detach() for t in floats)
    threads = torch.get_num_threads()
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(fusewheel.experts(x, indices, weights, *rest))
    torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_which_calls_are_one_operator():
    indices, floats = case(torch.float32, tokens=9)
    x, weights, *rest = (t.detach() for t in floats)

    def call(tokens, x=x):
        return lambda: fusewheel.experts(x[:tokens], indices[:tokens], weights[:tokens], *rest)

    assert operators_of(call(8)) == {"fusewheel::experts"}
    assert "fusewheel::experts" not in operators_of(call(9))
    assert "fusewheel::experts" not in operators_of(call(8, x.clone().requires_grad_()))
    with torch.no_grad():
        assert operators_of(call(8, x.clone().requires_grad_())) == {"fusewheel::experts"}
    with torch.autocast("cpu"):
        assert "fusewheel::experts" not in operators_of(call(8))


def test_layers_without_features_between_them():
    x, indices, weights = Make()(2, 8), torch.tensor([[1], [4]]), Make()(2, 1)
    bias = Make()(2, 8)
    y = fusewheel.experts(x, indices, weights, Make()(2, 0, 8), Make()(2, 8, 0), None, bias)
    torch.testing.assert_close(y, torch.stack((weights[0] * bias[1], torch.zeros(8))))


def test_tokens_without_experts():
    x, none = Make()(2, 8), torch.zeros(2, 0)
    y = fusewheel.experts(x, none.long(), none, Make()(2, 6, 8), Make()(2, 8, 3))
    assert torch.equal(y, torch.zeros(2, 8))


def test_the_weight_of_an_expert_that_nobody_chose_is_not_read():
    indices, floats = case(torch.float32, tokens=3)
    x, weights, *rest = (t.detach() for t in floats)
    assert not (indices == 2).any()
    for table in rest:
        table[2] = float("nan")
    assert fusewheel.experts(x, indices, weights, *rest).isfinite().all()


def test_one_token_compiles_to_one_operator():
    indices, floats = case(torch.float32, tokens=1)
    x, weights, *rest = (t.detach() for t in floats)
    found = []

    def backend(graph, inputs):
        found.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch.compiler.reset()
    compiled = torch.compile(fusewheel.experts, backend=backend, fullgraph=True)
    assert torch.equal(
        compiled(x, indices, weights, *rest), fusewheel.experts(x, indices, weights, *rest)
    )
    assert found == ["fusewheel.experts"]


def any_arguments(d: Draw):
    d.special = None  # the products of products decide by their order whether they are finite
    tokens, k, experts = d.size(most=33), d.integer(0, 4), d.integer(1, 5)
    indices = d.integers(
        tokens, k, least=-1, most=experts, dtype=d.choice(torch.int32, torch.int64)
    )
    weights = d.tensor(tokens, k, scale=1.0)
    format = FORMATS[d.choice("Q4_1", "Q8_0", "NF4")] if d.flag() else None

    def layer(rows: int, columns: int):
        if format is None:
            # One that lies transposed is summed in another order.
            weight = d.tensor(experts, rows, columns, dtype=d.stored(), scale=columns**-0.5)
            weight, number = weight.contiguous(), 0
        else:
            made = Make(seed=d.integer(0, 99)), format.name, experts, rows
            blocks, number = blocks_of(*made, columns // format.weights)
            weight = d.lay(blocks, apart=True)
        return weight, number, d.optional(experts, rows, dtype=d.stored(), scale=1.0)

    features, inner = (d.choice(64, 128) if format else d.size(1, 65) for _ in range(2))
    x = d.tensor(tokens, features, scale=1.0)
    first, last = layer(2 * inner, features), layer(features, inner)
    return x, indices, weights, *first, *last, d.integer(0, 2)


FUZZ = {"experts": any_arguments}
