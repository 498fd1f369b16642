"""A language model of transformers that calls fused operators itself, without a compiler."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import fusewheel
import torch.nn.functional as F
from torch import Tensor, nn


def calling_operators(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The loss of a Llama by its token ids; the model's norms, gates, rotations and loss are fused.

    Args:
        model: of transformers, with Llama's modules; they are changed.
    """
    from transformers.models.llama import modeling_llama

    for module in model.modules():
        if isinstance(module, modeling_llama.LlamaRMSNorm):
            module.forward = types.MethodType(_norm, module)
        elif isinstance(module, modeling_llama.LlamaMLP):
            module.forward = types.MethodType(_gated, module)
    causal: Any = model
    causal.loss_function = _loss

    def step(ids: Tensor) -> Tensor:
        with patch.object(modeling_llama, "apply_rotary_pos_emb", _rotate):
            return causal(ids, labels=ids, use_cache=False).loss

    return step


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    options = self.weight, self.variance_epsilon
    return fusewheel.rms_norm(hidden_states, self.weight.shape, *options, cast="llama")


def _gated(self: Any, x: Tensor) -> Tensor:
    return self.down_proj(fusewheel.silu_mul(self.gate_proj(x), self.up_proj(x)))


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return fusewheel.rope(q, k, cos, sin)


def _loss(logits: Tensor, labels: Tensor, vocab_size: int, **_: Any) -> Tensor:
    following = F.pad(labels, (0, 1), value=-100)[:, 1:]
    return fusewheel.cross_entropy(logits.view(-1, vocab_size), following.flatten())
