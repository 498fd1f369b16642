"""Fused operators in the layers of one model, without a compiler."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusewheel._core.arguments import require_module
from fusewheel._core.report import BaseReport
from fusewheel.ops.activation.gelu import gelu
from fusewheel.ops.choices import Cast, Reduction
from fusewheel.ops.loss.cross_entropy import cross_entropy
from fusewheel.ops.norm.layer_norm import layer_norm
from fusewheel.ops.norm.rms_norm import rms_norm
from fusewheel.transformers._layers import (
    CASTS,
    cast_of,
    epsilon_of,
    gated_forward,
    looks_like_rms_norm,
)
from fusewheel.transformers._register import NAME, register

_undo: weakref.WeakKeyDictionary[nn.Module, list[Callable[[], None]]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class PatchReport(BaseReport):
    """What `fusewheel.patch` did to a model.

    Attributes:
        replaced: what runs now, by the name of the module; "" is the model.
        left: why a module that looks like one of ours was left alone, by its name.
    """

    replaced: dict[str, str]
    left: dict[str, str]

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for what in self.replaced.values():
            counts[what] = counts.get(what, 0) + 1
        lines = [f"{count} x {what}" for what, count in counts.items()] or ["nothing replaced"]
        return "\n".join([*lines, *(f"left alone: {k}: {why}" for k, why in self.left.items())])


def patch(model: nn.Module, attention: bool = True) -> PatchReport:
    """Makes the layers of one model call fused operators, without a compiler.

    The forward of these layers is replaced, in this model only:

    - `torch.nn.LayerNorm`, `torch.nn.RMSNorm` and `torch.nn.GELU`;
    - RMSNorms of other classes, if they round in one of the three ways of `fusewheel.rms_norm`;
    - gated blocks (`gate_proj`, `up_proj`, `down_proj`, or `gate_up_proj`) with SiLU or GELU.

    A class is not recognised by its name: it is tried on random numbers, and left alone if it
    computes something else. A model of transformers also gets `attn_implementation="fusewheel"`,
    `experts_implementation="fusewheel"` if it is a mixture of experts and, for causal language
    models, fused cross entropy.

    Parameters, state dictionary and hooks stay the same. Rotary embeddings are not replaced: in
    transformers they are a function that all models of a class share.

    Args:
        model: the model, changed in place.
        attention: whether attention is replaced as well; default True.

    Returns:
        what was replaced, and what was left alone and why.

    Raises:
        TypeError: `model` is not a module.
        ValueError: the model is patched already.
    """
    require_module("patch", model)
    if model in _undo:
        raise ValueError("patch: model is patched already; fusewheel.unpatch(model) undoes that")
    undo: list[Callable[[], None]] = []
    replaced: dict[str, str] = {}
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        found = _replacement(module)
        if found is None:
            continue
        what, forward = found
        if forward is None:
            left[name] = what
        elif "forward" in vars(module):
            left[name] = "its forward was replaced by somebody else"
        else:
            vars(module)["forward"] = types.MethodType(forward, module)
            undo.append(_removal(module))
            replaced[name] = what
    for what, back in _of_transformers(model, attention):
        replaced[""] = f"{replaced['']} and {what}" if "" in replaced else what
        undo.append(back)
    _undo[model] = undo
    return PatchReport(replaced, left)


def unpatch(model: nn.Module) -> None:
    """Undoes `fusewheel.patch`.

    Args:
        model: the model, changed in place.

    Raises:
        TypeError: `model` is not a module.
        ValueError: the model is not patched.
    """
    require_module("unpatch", model)
    if model not in _undo:
        raise ValueError("unpatch: model is not patched")
    for back in reversed(_undo.pop(model)):
        back()


def _removal(module: nn.Module) -> Callable[[], None]:
    return lambda: vars(module).pop("forward", None) and None


def _replacement(module: nn.Module) -> tuple[str, Callable[..., Tensor] | None] | None:
    """What to run in a module's place; or why nothing; or None for a module of another kind."""
    kind = type(module)
    if kind is nn.LayerNorm:
        return "layer_norm", _layer_norm
    if kind is nn.RMSNorm:
        return "rms_norm (torch)", _rms_norm
    if kind is nn.GELU:
        return "gelu", _gelu
    if looks_like_rms_norm(module):
        cast = cast_of(module)
        if cast is None:
            return f"{kind.__name__} computes something else than rms_norm", None
        return f"rms_norm ({cast})", _NORMS[cast]
    gated = gated_forward(module)
    return None if gated is None else (f"gated block ({gated[0]})", gated[1])


def _layer_norm(self: Any, input: Tensor) -> Tensor:
    return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    return rms_norm(x, self.normalized_shape, self.weight, self.eps)


def _gelu(self: Any, input: Tensor) -> Tensor:
    return gelu(input, self.approximate)


def _norm(cast: Cast) -> Callable[..., Tensor]:
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        shape = self.weight.shape
        return rms_norm(hidden_states, shape, self.weight, epsilon_of(self), cast=cast)

    return forward


_NORMS = {cast: _norm(cast) for cast in CASTS}


def _of_transformers(model: nn.Module, attention: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """What is set on a model of transformers, and how that is undone."""
    own: Any = model
    if attention and hasattr(model, "set_attn_implementation") and hasattr(model, "config"):
        before = own.config._attn_implementation
        register()
        try:
            own.set_attn_implementation(NAME)
        except ValueError:
            pass  # a model that supports eager attention only
        else:
            yield "attention", lambda: own.set_attn_implementation(before)
    if hasattr(model, "set_experts_implementation") and _has_experts(model):
        former = own.config._experts_implementation
        register()
        own.set_experts_implementation(NAME)
        yield "experts", lambda: own.set_experts_implementation(former)
    if getattr(model, "loss_type", None) == "ForCausalLM":
        loss = own.loss_function
        own.loss_function = causal_loss
        yield "cross_entropy", lambda: setattr(own, "loss_function", loss)


def _has_experts(model: nn.Module) -> bool:
    """Whether transformers lets a model choose how its experts are computed."""
    return any(hasattr(m, "_is_expert_parallel") for m in model.modules())


def causal_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """The loss of a causal language model in transformers, by `fusewheel.cross_entropy`.

    Args:
        logits: `[batch, length, classes]`; the loss is computed in float32.
        labels: int64 `[batch, length]`; the logits of a token predict the next one.
        vocab_size: the number of classes.
        num_items_in_batch: the divisor of the sum; default None, which means the mean.
        ignore_index: labels without a loss; default -100.
        shift_labels: the labels, shifted already; default None.
        others: ignored, as in transformers.
    """
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
    rows = logits.float().view(-1, vocab_size)
    target = shift_labels.view(-1).to(rows.device)
    reduction: Reduction = "mean" if num_items_in_batch is None else "sum"
    loss = cross_entropy(rows, target, ignore_index=ignore_index, reduction=reduction)
    if num_items_in_batch is None:
        return loss
    if torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss / num_items_in_batch
