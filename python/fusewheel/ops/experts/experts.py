"""The experts of a mixture: gate, up, activation, down, weighted sum"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fusewheel._torch.functorch import in_transform, is_plain
from fusewheel.dispatch.autograd import reference_gradients
from fusewheel.dispatch.operator import Arguments, Operator
from fusewheel.dispatch.promise import check_same_device, check_tensors, fail
from fusewheel.dispatch.sharding import Layout, places
from fusewheel.ops._checks import (
    check,
    check_floating,
    check_sizes,
    check_weight_dtype,
    describe,
)
from fusewheel.ops._not_tensors import with_type_errors
from fusewheel.ops._rows import wide
from fusewheel.ops.choices import Activation
from fusewheel.ops.experts import _experts as inputs
from fusewheel.ops.experts._groups import check_weights
from fusewheel.ops.experts._mixture import (
    ACTIVATIONS,
    Layers,
    by_layers,
    one_call,
    order_of,
    takes_one_call,
)
from fusewheel.ops.experts.grouped_linear import grouped_reference
from fusewheel.ops.experts.grouped_linear_blocks import check_group_blocks, grouped_blocks_reference
from fusewheel.ops.linear._blocks import format_of

_NAMES = ("silu", "gelu", "gelu_tanh")


@with_type_errors
def experts(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: Activation = "silu",
) -> Tensor:
    """The experts of a mixture: each token goes through `k` of them.

    Expert `e` makes `down[e] @ (activation(gate) * up)` of a token, where `gate` is the first half
    of `gate_up[e] @ token` and `up` the second. The result is the sum over the token's experts,
    each times its weight. Biases are added after the products, if there are any.

    The tokens are sorted by expert, so that each weight is read once; weights of experts that no
    token chose are not read. Nothing is padded, and no weight is copied. An index that is not the
    number of an expert adds 0, so each device of a distributed model can leave out the experts of
    the other devices. Sums are in the same order in each run. Gradients flow to `x`, `weights`,
    `gate_up`, `down` and the biases.

    Source: Shazeer et al., "Outrageously Large Neural Networks" (2017), in the form of Mixtral
    (2024).

    Args:
        x: `[tokens, H]`; float32, bfloat16, float16 or float64.
        indices: int64 or int32 `[tokens, k]`, the experts of each token, from 0; `fusewheel.route`
            finds them.
        weights: `[tokens, k]`, floating, what each of these experts counts for.
        gate_up: `[experts, 2 * I, H]`, for each expert the weight of the gate, then that of up;
            any of the four dtypes, but float64 only if `x` is float64.
        down: `[experts, H, I]`, likewise.
        gate_up_bias: `[experts, 2 * I]`; default None.
        down_bias: `[experts, H]`; default None.
        activation: `"silu"` (default), `"gelu"` or `"gelu_tanh"`.

    Returns:
        `[tokens, H]` in the dtype of `x`.

    Raises:
        ValueError: `activation` is not one of the three.
        RuntimeError: a dtype, shape or device is not as above.
    """
    if activation not in _NAMES:
        message = "activation must be 'silu', 'gelu' or 'gelu_tanh'"
        raise ValueError(f"experts: {message}, got {activation!r}")
    number = _NAMES.index(activation)
    first, last = Layers(gate_up, gate_up_bias), Layers(down, down_bias)
    if takes_one_call(x, weights, first, last):
        return one_call(x, indices, weights, first, last, number)  # which checks the same
    names = ("x", "indices", "weights", "gate_up", "down", "gate_up_bias", "down_bias")
    optional = (False,) * 5 + (True, True)
    given = (x, indices, weights, gate_up, down, gate_up_bias, down_bias)
    check_tensors("experts", names, optional, given)
    _check(x, indices, weights, first, last)
    between = ACTIVATIONS[number]
    return by_layers(x, indices, weights, first, between, last, gate_up.shape[0])


def _sizes(name: str, layers: Layers, x: Tensor) -> tuple[int, int, int]:
    """Checks a weight; how many experts, out features and in features it has."""
    op, first = "experts", ("x", x)
    if layers.kind == 0:
        check_weights(op, (name, layers.weight), first)
        experts, rows, columns = layers.weight.shape
        return experts, rows, columns
    format = check_group_blocks(op, (name, layers.weight), layers.kind, first)
    experts, rows, blocks, _ = layers.weight.shape
    return experts, rows, blocks * format.weights


def _check(x: Tensor, indices: Tensor, weights: Tensor, first: Layers, last: Layers) -> None:
    op = "experts"
    check_floating(op, ("x", x))
    if x.dim() != 2:
        fail(op, f"x must have shape [tokens, features], got {list(x.shape)}")
    if indices.dtype not in (torch.int32, torch.int64):
        fail(op, f"indices must be int32 or int64, got {describe(indices.dtype)}")
    tokens, features = x.shape
    shape = f"indices must have shape [{tokens}, k] (the tokens of x), got {list(indices.shape)}"
    if indices.dim() != 2:
        fail(op, shape)
    check(op, indices.shape[0] == tokens, shape)
    check_floating(op, ("weights", weights))
    check_sizes(op, ("weights", weights), indices.shape, "that of indices")
    experts, both, columns = _sizes("gate_up", first, x)
    sizes = _sizes("down", last, x)
    _check_equal("gate_up", (experts, both, columns), (experts, both, features),
                 "experts, 2 * I, features")  # fmt: skip
    check(op, both % 2 == 0, f"gate_up must have an even number of out features, got {both}")
    _check_equal("down", sizes, (experts, features, both // 2), "experts, features, I")
    for name, bias, size in (
        ("gate_up_bias", first.bias, both),
        ("down_bias", last.bias, features),
    ):
        if bias is not None:
            check_same_device(op, (name, bias), ("x", x))
            check_weight_dtype(op, (name, bias), ("x", x))
            check_sizes(op, (name, bias), (experts, size), "experts, out features")


def _check_equal(name: str, got: Any, expected: Any, what: str) -> None:
    message = f"{name} must have shape {list(expected)} ({what}), got {list(got)}"
    for own, wanted in zip(got, expected, strict=True):
        check("experts", own == wanted, message)


class _Call(NamedTuple):
    """The arguments of the operator, in its order."""

    x: Tensor
    indices: Tensor
    weights: Tensor
    gate_up: Tensor
    gate_up_kind: int
    gate_up_bias: Tensor | None
    down: Tensor
    down_kind: int
    down_bias: Tensor | None
    activation: int

    @property
    def first(self) -> Layers:
        """Gate and up."""
        return Layers(self.gate_up, self.gate_up_bias, self.gate_up_kind)

    @property
    def last(self) -> Layers:
        """Down."""
        return Layers(self.down, self.down_bias, self.down_kind)


def _fake(*arguments: Any) -> Tensor:
    call = _Call(*arguments)
    _check(call.x, call.indices, call.weights, call.first, call.last)
    check_weight_dtype("experts", ("weights", call.weights), ("x", call.x))
    if not 0 <= call.activation < len(ACTIVATIONS):
        fail("experts", f"activation must be from 0 to 2, got {call.activation}")
    return torch.empty(call.x.shape, dtype=call.x.dtype, device=call.x.device)


def _grouped(layers: Layers, rows: Tensor, ends: Tensor) -> Tensor:
    if layers.kind == 0:
        return grouped_reference(rows, layers.weight, ends, layers.bias)
    return grouped_blocks_reference(rows, layers.weight, layers.kind, ends, layers.bias)


def _reference(*arguments: Any) -> Tensor:
    call = _Call(*arguments)
    x, indices, experts = call.x, call.indices, call.gate_up.shape[0]
    order = order_of(indices, experts)
    both = wide(_grouped(call.first, x.index_select(0, order.tokens), order.ends))
    gate, up = both.chunk(2, -1)
    if call.activation == 0:
        gate = functional.silu(gate)
    else:
        gate = functional.gelu(gate, approximate="tanh" if call.activation == 2 else "none")
    y = _grouped(call.last, (gate * up).to(x.dtype), order.ends)
    pairs = wide(y.index_select(0, order.places)).view(*indices.shape, x.shape[1])
    own = (indices >= 0) & (indices < experts)
    shares = torch.where(own, call.weights.to(pairs.dtype), 0)
    return (pairs * shares.unsqueeze(-1)).sum(1).to(x.dtype)


def _parts(*arguments: Any) -> Tensor:
    """The same by operators that have gradients."""
    call = _Call(*arguments)
    between = ACTIVATIONS[call.activation]
    count = call.gate_up.shape[0]
    return by_layers(call.x, call.indices, call.weights, call.first, between, call.last, count)


def _backward(
    needs: Sequence[bool], grads: Sequence[Any], arguments: Arguments, saved: Sequence[Tensor]
) -> list[Tensor | None]:
    """What its parts give, computed again."""
    return reference_gradients(_parts, needs, grads, arguments)


def _flops(*arguments: Any) -> int:
    call = _Call(*arguments)
    experts, both, size = call.gate_up.shape[:3]
    kind, indices = call.gate_up_kind, call.indices
    features = size if kind == 0 else size * format_of("experts", kind).weights
    pairs = indices.numel()
    if not in_transform() and is_plain(indices) and not indices.is_meta:
        pairs = int(((indices >= 0) & (indices < experts)).sum())
    return 2 * pairs * features * (both + both // 2)


def _sharding(*arguments: Any) -> Iterator[Layout]:
    """The tokens are cut."""
    yield Layout(places(arguments, {0: 0, 1: 0, 2: 0}), (0,))


OPERATORS = (
    # Without a function of its own: `experts` calls it for few tokens without a gradient, else
    # operators that keep what a gradient needs.
    Operator(
        name="experts",
        flops=_flops,
        reference=_reference,
        fake=_fake,
        backward=_backward,
        shapes=("x",),
        sharding=_sharding,
        samples=inputs.samples,
        bad_inputs=inputs.bad_inputs,
        benchmarks=inputs.benchmarks,
    ),
)
FUNCTIONS = (experts,)
