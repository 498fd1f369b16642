"""The experts of a mixture: gate, up, activation, down, weighted sum"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fusewheel.dispatch.operator import Operator
from fusewheel.dispatch.promise import check_tensors, fail
from fusewheel.ops._checks import (
    check,
    check_floating,
    check_sizes,
    check_weight_dtype,
    describe,
)
from fusewheel.ops._not_tensors import with_type_errors
from fusewheel.ops.activation.gelu_mul import gelu_mul_packed
from fusewheel.ops.activation.silu_mul import silu_mul_packed
from fusewheel.ops.choices import Activation
from fusewheel.ops.experts._groups import check_weights
from fusewheel.ops.experts._mixture import layers, mixture

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu_mul_packed,
    "gelu": lambda gate_up: gelu_mul_packed(gate_up, approximate="none"),
    "gelu_tanh": lambda gate_up: gelu_mul_packed(gate_up, approximate="tanh"),
}


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
    token chose are not read. Nothing is padded, and no weight is copied. A number that is
    none of an expert gives 0: so each device of a distributed model can leave out the experts of
    the others. Sums are in the same order in each run. Gradients flow to `x`, `weights`, `gate_up`,
    `down` and the biases.

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
    _check(x, indices, weights, gate_up, down, gate_up_bias, down_bias)
    between = _ACTIVATIONS.get(activation)
    if between is None:
        message = "activation must be 'silu', 'gelu' or 'gelu_tanh'"
        raise ValueError(f"experts: {message}, got {activation!r}")
    first, last = layers(gate_up, gate_up_bias), layers(down, down_bias)
    return mixture(x, indices, weights, first, between, last, gate_up.shape[0])


def _check(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> None:
    op, first = "experts", ("x", x)
    names = ("x", "indices", "weights", "gate_up", "down", "gate_up_bias", "down_bias")
    optional = (False,) * 5 + (True, True)
    given = (x, indices, weights, gate_up, down, gate_up_bias, down_bias)
    check_tensors(op, names, optional, given)
    check_floating(op, first)
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
    check_weights(op, ("gate_up", gate_up), first)
    check_weights(op, ("down", down), first)
    experts, both, _ = gate_up.shape
    check_sizes(op, ("gate_up", gate_up), (experts, both, features), "experts, 2 * I, features")
    check(op, both % 2 == 0, f"gate_up must have an even number of out features, got {both}")
    check_sizes(op, ("down", down), (experts, features, both // 2), "experts, features, I")
    for name, bias, size in (
        ("gate_up_bias", gate_up_bias, both),
        ("down_bias", down_bias, features),
    ):
        if bias is not None:
            check_weight_dtype(op, (name, bias), first)
            check_sizes(op, (name, bias), (experts, size), "experts, out features")


OPERATORS: tuple[Operator, ...] = ()
FUNCTIONS = (experts,)
