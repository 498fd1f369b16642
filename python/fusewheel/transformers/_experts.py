"""The experts of models of transformers, by `fusewheel.grouped_linear`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fusewheel.ops.experts._mixture import Layers, mixture
from fusewheel.quantization.experts import gate_of, last_of


def experts_forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The forward of an experts module of transformers with
    `experts_implementation="fusewheel"`: each token's sum over its experts.

    An index that is none of an expert of this module gives 0: expert parallelism of transformers
    marks the experts of other devices so.

    Args:
        self: the module: its weights, and how they lie (`has_gate`, `has_bias`, `is_transposed`).
        hidden_states: `[tokens, H]`.
        top_k_index: int64 `[tokens, k]`, the experts of each token.
        top_k_weights: `[tokens, k]`, what each of them counts for.

    Returns:
        `[tokens, H]` in the dtype of `hidden_states`.
    """
    name = "gate_up_proj" if self.has_gate else "up_proj"
    return mixture(
        hidden_states,
        top_k_index,
        top_k_weights,
        _layers(self, name),
        gate_of(self),
        last_of(self, _layers(self, "down_proj")),
        getattr(self, name).shape[0],
    )


def _layers(self: Any, name: str) -> Layers:
    weight = getattr(self, name)
    bias = getattr(self, f"{name}_bias") if self.has_bias else None
    return Layers(weight.transpose(1, 2) if self.is_transposed else weight, bias)
