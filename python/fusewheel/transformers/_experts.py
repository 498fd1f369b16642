"""The experts of models of transformers, by `fusewheel.grouped_linear`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fusewheel._core.after_import import after_import
from fusewheel._torch import dynamo
from fusewheel._torch.dynamo import is_capturing
from fusewheel.ops.experts._mixture import Layers, mixture
from fusewheel.quantization.experts import gate_of, last_of

_Experts = Callable[..., Tensor]

_LOOP = "eager"
_PRODUCTS = _LOOP, "grouped_mm", "batched_mm"


def experts_forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The forward of an experts module of transformers with
    `experts_implementation="fusewheel"`: each token's sum over its experts.

    An index that is not the number of an expert of this module adds 0: expert parallelism of
    transformers marks the experts of other devices so.

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


def captured_experts(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """`experts_forward` in the place of the loop; the compiler's report looks for this name."""
    return experts_forward(self, hidden_states, top_k_index, top_k_weights)


def replace_captured_experts() -> None:
    """Lets transformers take `captured_experts` for its loop, while fusewheel captures a program.

    With `experts_implementation="eager"` transformers loops over the experts that were chosen.
    Dynamo breaks the graph in front of such a loop, and other captures fail there. Models that are
    not compiled, or by another backend, run the loop.
    """
    from transformers.integrations.moe import ExpertsInterface

    kind: Any = ExpertsInterface
    choose = kind.get_interface
    # Dynamo asks while it traces, and takes the answer for a constant of the graph.
    after_import(dynamo.HOME, lambda: torch.compiler.assume_constant_result(is_capturing))

    @functools.wraps(choose)
    def get_interface(self: Any, experts_implementation: str, default: _Experts) -> _Experts:
        # Kinds of experts with an interface of their own store their weights in another way.
        if type(self) is kind and is_capturing():
            # Dynamo captures products of groups, and without it PyTorch refuses their float32.
            without_dynamo = not torch.compiler.is_compiling()
            if experts_implementation in (_PRODUCTS if without_dynamo else (_LOOP,)):
                return captured_experts
        chosen: _Experts = choose(self, experts_implementation, default)
        return chosen

    kind.get_interface = get_interface
