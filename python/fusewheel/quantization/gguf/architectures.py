"""The architectures of GGUF files that can be loaded, and how transformers configures each.

Source: the converter of llama.cpp, `convert_hf_to_gguf.py`, and its `src/models/`. What a file does
not say is what they take for granted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusewheel.quantization.gguf.rotary import longrope, rotary
from fusewheel.quantization.gguf.values import Values

Options = dict[str, Any]


def _dense(values: Values) -> Options:
    return {}


def _llama(values: Values) -> Options:
    """Llama and Mistral, which have one architecture; Mixtral, if there are experts."""
    if values.number("expert_count"):
        return {"model_type": "mixtral"} | _mixture(values, "num_local_experts")
    return {"attention_bias": values.has("blk.0.attn_q.bias")}


def _mixture(values: Values, name: str = "num_experts") -> Options:
    experts, chosen = values.count("expert_count"), values.count("expert_used_count")
    if chosen > experts:
        values.refuse(f"sends a token to {chosen} of {experts} experts")
    return {name: experts, "num_experts_per_tok": chosen}


def _olmoe(values: Values) -> Options:
    clip = values.number("attention.clamp_kqv")
    return _mixture(values) | {"norm_topk_prob": False, "clip_qkv": clip or None}


def _qwen2moe(values: Values) -> Options:
    return _mixture(values) | {
        "moe_intermediate_size": values.count("expert_feed_forward_length"),
        "shared_expert_intermediate_size": values.count("expert_shared_feed_forward_length"),
        "norm_topk_prob": False,
    }


def _qwen3moe(values: Values) -> Options:
    inner = values.count("expert_feed_forward_length")
    return _mixture(values) | {"moe_intermediate_size": inner, "norm_topk_prob": True}


def _gemma_attention(values: Values, largest: int) -> Options:
    """Windows, and the scale of the scores: the largest model of a family has another one."""
    heads, head = values.count("attention.head_count"), values.count("attention.key_length")
    is_largest = values.number("block_count") == largest
    scale = values.count("embedding_length") // heads if is_largest else head
    return {
        "query_pre_attn_scalar": scale,
        "sliding_window": values.count("attention.sliding_window"),
        "final_logit_softcapping": values.number("final_logit_softcapping"),
        "attn_logit_softcapping": values.number("attn_logit_softcapping"),
    }


def _gemma2(values: Values) -> Options:
    found = _gemma_attention(values, 46)
    caps = {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
    return found | {name: found[name] or cap for name, cap in caps.items()}


def _gemma3(values: Values) -> Options:
    local = values.number("rope.freq_base_swa") or 10000.0
    return _gemma_attention(values, 62) | {
        "rope_parameters": {
            "full_attention": rotary(values, 1000000.0),
            "sliding_attention": {"rope_type": "default", "rope_theta": float(local)},
        }
    }


def _phi3(values: Values) -> Options:
    key = "attention.sliding_window"
    window = values.count(key) if values.number(key) else None
    return {"sliding_window": window} | longrope(values)


def _gpt_oss(values: Values) -> Options:
    found = rotary(values, 150000.0)
    if found["rope_type"] == "yarn":
        found |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    return _mixture(values, "num_local_experts") | {
        "intermediate_size": values.count("expert_feed_forward_length"),
        "sliding_window": values.count("attention.sliding_window"),
        "rope_parameters": found,
    }


@dataclass(frozen=True)
class Architecture:
    """How files of an architecture differ from those of others.

    Attributes:
        model_type: of transformers' configuration; `options` may name another one.
        options: what the configuration has beside what all have.
        neighbouring_pairs: whether the converter puts rotary pairs side by side, which reorders
            the rows of attn_q and attn_k. They are half a head apart in transformers.
        norms_plus_one: whether the file has the weights of norms plus 1.
        partial_rotary: whether only a part of each head may be rotated.
    """

    model_type: str
    options: Callable[[Values], Options] = _dense
    neighbouring_pairs: bool = False
    norms_plus_one: bool = False
    partial_rotary: bool = False


ARCHITECTURES = {
    "llama": Architecture("llama", _llama, neighbouring_pairs=True),
    "qwen2": Architecture("qwen2"),
    "qwen2moe": Architecture("qwen2_moe", _qwen2moe),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": Architecture("qwen3_moe", _qwen3moe),
    "gemma": Architecture("gemma", norms_plus_one=True),
    "gemma2": Architecture("gemma2", _gemma2, norms_plus_one=True),
    "gemma3": Architecture("gemma3_text", _gemma3, norms_plus_one=True),
    "phi3": Architecture("phi3", _phi3, partial_rotary=True),
    "olmoe": Architecture("olmoe", _olmoe),
    "smollm3": Architecture("smollm3", neighbouring_pairs=True),
    "gpt-oss": Architecture("gpt_oss", _gpt_oss),
}
"""What can be loaded, by the name in the file."""
