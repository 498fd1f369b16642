"""Tiny random models of transformers, each with three implementations of attention."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from oracle import assert_program_as_good_as_eager
from torch import Tensor

transformers = pytest.importorskip("transformers")
sdpa_mask = pytest.importorskip("transformers.masking_utils").sdpa_mask

WINDOW, VOCABULARY = 5, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Weights of the usual size would make every score nearly 0. Those of 0.5 make a softmax see one
    # key alone, and then the logsumexp's rounding decides the gradients.
    "initializer_range": 0.2,
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": WINDOW},
    # Layers with a window and without in turn; a small cap, so that it counts.
    "Gemma2": {
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 2.0,
        "query_pre_attn_scalar": 5,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "GptOss": {"sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
}


def exact_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The formula. Eager is no reference in float64: its softmax is in float32 there too."""
    group = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(group, 1) for t in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    scores = scores if position_bias is None else scores + position_bias
    scores = torch.where(attention_mask, scores, -torch.inf)
    sinks = scores.new_full((1, 1, 1, 1), -torch.inf) if s_aux is None else s_aux.view(1, -1, 1, 1)
    least = torch.finfo(scores.dtype).min  # so that a row without keys is not NaN
    every = torch.cat((scores, sinks.expand(*scores.shape[:3], 1)), -1).clamp(min=least)
    shares = torch.where(attention_mask, every.softmax(-1)[..., :-1], 0.0)
    return (shares @ value).transpose(1, 2).contiguous(), None


def exact_mask(**arguments: Any) -> Tensor:
    """True for each query's keys."""
    always = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    found: Tensor = sdpa_mask(**arguments | always)
    return found


def register_exact() -> None:
    """Adds `attn_implementation="exact"` to transformers."""
    transformers.AttentionInterface.register("exact", exact_attention)
    transformers.AttentionMaskInterface.register("exact", exact_mask)


def build(name: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """A tiny random model, in eval mode."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | MODELS.get(name, {}) | settings)
    return prepared(getattr(transformers, f"{name}ForCausalLM")(config).to(dtype))


def prepared(model: Any) -> Any:
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")  # others take no float64
    return model.eval()


def with_attention(model: Any, implementation: str = "fusewheel") -> Any:
    twin = copy.deepcopy(model)
    twin.set_attn_implementation(implementation)
    return twin


def three(model: Any) -> tuple[Any, Any, Any]:
    """The model with our attention, as it is, and in float64."""
    return with_attention(model), model, with_attention(model, "exact").double()


def tokens(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, VOCABULARY, shape, generator=generator)


def step(model: Any, keep: Tensor | slice, **inputs: Any) -> list[Tensor]:
    """The logits of the tokens that count, and all gradients as one vector."""
    model.zero_grad(set_to_none=True)
    logits = model(**inputs).logits[keep]
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(logits.shape, generator=generator).to(logits)
    (logits * weights).sum().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return [logits.detach(), torch.cat(gradients)]


def assert_steps(model: Any, keep: Tensor | slice = slice(None), **inputs: Any) -> None:
    """Ours is as good as eager."""
    assert_steps_of(step(m, keep, **inputs) for m in three(model))


def assert_steps_of(steps: Iterable[list[Tensor]]) -> None:
    got, eager, truth = steps
    assert_program_as_good_as_eager(got[0], eager[0], truth[0], "logits")
    # By its length: which single error is the largest one is a matter of chance.
    assert (got[1] - truth[1]).norm() <= 2 * (eager[1] - truth[1]).norm(), "gradients"


def padded(lengths: list[int], left: bool) -> tuple[Tensor, Tensor]:
    """Random tokens and their mask."""
    longest = max(lengths)
    mask = torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in zip(mask, lengths, strict=True):
        row[longest - length if left else 0 :][:length] = 1
    return tokens(*mask.shape) * mask, mask
