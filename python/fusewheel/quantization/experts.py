"""The experts of a mixture with quantised weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from fusewheel._torch.modules import HOOKS
from fusewheel.ops.activation.silu_mul import silu_mul_packed
from fusewheel.ops.experts._mixture import Layers, apply, mixture
from fusewheel.ops.experts.grouped_linear import grouped_linear
from fusewheel.ops.experts.grouped_linear_blocks import grouped_linear_blocks
from fusewheel.ops.linear._blocks import FORMATS
from fusewheel.quantization.block_modules import StoredBlocks
from fusewheel.quantization.block_rounding import RoundedKind, quantize_blocks


class GroupedBlocks(StoredBlocks):
    """The linear layers of all experts, with weights in stored blocks.

    Instead of `weight` it has the buffer `blocks`, which a cast to another dtype leaves as it is.
    Input and bias have gradients.

    Source: `fusewheel.grouped_linear_blocks` has the formula.

    Args:
        blocks: `[experts, N, K / weights, bytes]`, uint8. They are held, not copied.
        kind: the name of the format, `"Q4_1"`.
        bias: `[experts, N]`; default None.

    Raises:
        ValueError: `kind` is unknown, or the blocks have another dtype or shape.
    """

    dimensions = 4

    @property
    def experts(self) -> int:
        """How many experts there are."""
        return len(self.blocks)

    @classmethod
    def from_weight(
        cls, weight: Tensor, kind: RoundedKind, bias: Tensor | None = None
    ) -> GroupedBlocks:
        """Quantises the weights `[experts, N, K]` of all experts, see `quantize_blocks`."""
        experts, rows, columns = weight.shape
        format = FORMATS[kind]
        sizes = experts, rows, columns // format.weights, format.bytes
        blocks = torch.empty(sizes, dtype=torch.uint8, device=weight.device)
        if not weight.is_meta:
            for own, to in zip(weight.detach(), blocks, strict=True):
                to.copy_(quantize_blocks(own, kind))
        return cls(blocks, kind, bias)

    def forward(self, input: Tensor, ends: Tensor) -> Tensor:
        """Rows `[rows, K]` sorted by expert to `[rows, N]`; `ends` says where each expert's end."""
        return grouped_linear_blocks(input, self.blocks, self.kind, ends, self.bias)

    def extra_repr(self) -> str:
        """The text that `print` shows for the layers."""
        return f"experts={self.experts}, {super().extra_repr()}"


class GroupedFloats(nn.Module):
    """The linear layers of all experts, with floating weights.

    Source: `fusewheel.grouped_linear` has the formula.

    Args:
        weight: `[experts, N, K]`, floating.
        bias: `[experts, N]`; default None.
    """

    bias: Parameter | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.experts = len(weight)
        self.weight = Parameter(weight)
        self.register_parameter("bias", None if bias is None else Parameter(bias))

    def forward(self, input: Tensor, ends: Tensor) -> Tensor:
        """Rows `[rows, K]` sorted by expert to `[rows, N]`; `ends` says where each expert's end."""
        return grouped_linear(input, self.weight, ends, self.bias)


class QuantizedExperts(nn.Module):
    """The experts of a mixture, in the place of an experts module of transformers.

    Input and weights of the experts have gradients. An index that is not the number of an expert
    adds 0.

    Source: `fusewheel.experts` has the formula.

    Args:
        original: the module of transformers whose place it takes. It is held for what happens
            between the layers; its weights are taken from it.
        up: the first layers: of gate and up together, unless `gate` is given.
        down: the last layers.
        gate: the layers of the gate; default None.
    """

    def __init__(
        self,
        original: nn.Module,
        up: GroupedBlocks | GroupedFloats,
        down: GroupedBlocks | GroupedFloats,
        gate: GroupedBlocks | GroupedFloats | None = None,
    ) -> None:
        super().__init__()
        for name in weights_of(original):
            del original._parameters[name]
        self.original = original
        self.gate, self.up, self.down = gate, up, down
        self.train(original.training)

    @classmethod
    def from_experts(cls, experts: Any, kind: RoundedKind) -> QuantizedExperts:
        """Quantises the weights of an experts module, see `quantize_blocks`. Biases are shared."""
        made = []
        for name in (_first(experts), "down_proj"):
            weight, bias = experts._parameters[name], experts._parameters.get(f"{name}_bias")
            weight = weight.transpose(1, 2) if experts.is_transposed else weight
            made.append(GroupedBlocks.from_weight(weight, kind, bias))
        return cls(experts, *made)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """`[tokens, H]` to `[tokens, H]`: the sum of each token's experts, times their weights."""
        return mixture(
            hidden_states,
            top_k_index,
            top_k_weights,
            _layers_of(self.up) if self.gate is None else self._gate_up,
            gate_of(self.original),
            last_of(self.original, _layers_of(self.down)),
            self.down.experts,
        )

    def _gate_up(self, x: Tensor, ends: Tensor) -> Tensor:
        assert self.gate is not None
        both = self.gate(x, ends), self.up(x, ends)
        if getattr(self.original, "is_concatenated", True):
            return torch.cat(both, -1)
        return torch.stack(both, -1).flatten(-2)


def _layers_of(layers: nn.Module) -> Layers | nn.Module:
    """What the layers multiply by, unless something else is in their place or hooks watch them."""
    if any(getattr(layers, hooks) for hooks in HOOKS):
        return layers
    if type(layers) is GroupedBlocks:
        return Layers(layers.blocks, layers.bias, FORMATS[layers.kind].number)
    if type(layers) is GroupedFloats:
        return Layers(layers.weight, layers.bias)
    return layers


def _first(experts: Any) -> str:
    return "gate_up_proj" if experts.has_gate else "up_proj"


def weights_of(experts: Any) -> list[str]:
    """The names of the weights and biases of an experts module of transformers."""
    names = (_first(experts), "down_proj")
    return [n for name in names for n in (name, f"{name}_bias") if n in experts._parameters]


def is_experts(module: nn.Module) -> bool:
    """Whether a module is one of transformers with experts as three-dimensional parameters."""
    marks = all(hasattr(module, name) for name in ("has_gate", "has_bias", "is_transposed"))
    if not marks:
        return False
    weights = [module._parameters.get(name) for name in (_first(module), "down_proj")]
    return all(weight is not None and weight.dim() == 3 for weight in weights)


def obstacle(experts: Any, kind: RoundedKind) -> str | None:
    """Why an experts module cannot be quantised; None if it can."""
    if torch.nn.utils.parametrize.is_parametrized(experts):
        return "it is parametrized"
    if any(getattr(experts, hooks) for hooks in HOOKS):
        return "it has hooks, which would be lost"
    if "forward" in vars(experts):
        return "its forward was replaced"
    size = FORMATS[kind].weights
    for name in (_first(experts), "down_proj"):
        weight = experts._parameters[name]
        if type(weight) is not Parameter or not weight.is_floating_point():
            return f"its {name} is a {type(weight).__name__} of {weight.dtype}"
        columns = weight.shape[1 if experts.is_transposed else 2]
        if columns == 0 or columns % size:
            return f"the {columns} in features of its {name} are not a multiple of {size}"
    return None


def gate_of(experts: Any) -> Callable[[Tensor], Tensor]:
    """What is between the layers: the module's own gate, unless it is the usual one with SiLU."""
    if not experts.has_gate:
        activation: Callable[[Tensor], Tensor] = experts.act_fn
        return activation
    own: Callable[[Tensor], Tensor] = experts._apply_gate
    usual = getattr(type(experts)._apply_gate, "__name__", "") == "_default_apply_gate"
    is_silu = type(getattr(experts, "act_fn", None)).__name__ in ("SiLU", "SiLUActivation")
    return silu_mul_packed if usual and is_silu else own


def last_of(
    experts: Any, down: Layers | Callable[[Tensor, Tensor], Tensor]
) -> Layers | Callable[[Tensor, Tensor], Tensor]:
    """The last layers, and a norm behind them if the module has one."""
    if not getattr(experts, "has_post_expert_norm", False):
        return down

    def last(x: Tensor, ends: Tensor) -> Tensor:
        normed: Tensor = experts.post_expert_norm(apply(down, x, ends))
        return normed

    return last
