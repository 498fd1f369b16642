"""A small Llama in a GGUF file, with the types of SmolLM2's: Q4_1 blocks, a Q8_0 embedding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from fusewheel.dispatch.operator import Make
from fusewheel.ops.linear._blocks import FORMATS
from fusewheel.ops.linear.linear_blocks import random_blocks
from gguf import GGMLQuantizationType as Kind

HEADS, KEY_HEADS = 4, 2
# Files name these models in another way than transformers.
ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
}


def small_llama(layers: int = 3, **changes: Any) -> Any:
    """A random model whose rows are whole blocks of 32."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=layers, **(sizes | changes))
    return AutoModelForCausalLM.from_config(config)


def write_gguf(
    path: Path,
    model: Any,
    linear: Kind = Kind.Q4_1,
    embedding: Kind = Kind.Q8_0,
    extra: dict[str, np.ndarray] | None = None,
    tokens: tuple[str, ...] = (),
    scaling: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    kinds: dict[str, Kind] | None = None,
) -> None:
    """Write the weights as llama.cpp's converter does.

    `tokens` are those of a byte-level tokenizer, which merges what gives tokens of two characters;
    `scaling` has what the file says about rotary embeddings, `metadata` what else it says,
    `kinds` what `linear` does not say, by parts of the names in the file.

    Types that the package gguf cannot quantise get random blocks, whatever the model's weights are.
    """
    config = model.config
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // HEADS
    rotary = config.rope_parameters
    rotary = rotary.get("full_attention", rotary)
    writer.add_rope_dimension_count(int(head_dim * rotary.get("partial_rotary_factor", 1.0)))
    writer.add_key_length(head_dim)
    writer.add_rope_freq_base(rotary["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
        writer.add_token_types([1] * len(tokens))
        writer.add_token_merges([f"{pair[0]} {pair[1]}" for pair in tokens if len(pair) == 2])
        writer.add_eos_token_id(0)
    said = {f"rope.scaling.{key}": value for key, value in (scaling or {}).items()}
    for key, value in (said | (metadata or {})).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](f"{architecture}.{key}", value)
    for key, values in stored(model):
        kind = Kind.F32 if values.ndim == 1 or "gate_inp" in key or "exps.bias" in key else linear
        kind = embedding if "token_embd" in key else kind
        kind = next((own for part, own in (kinds or {}).items() if part in key), kind)
        writer.add_tensor(key, _blocks(values, kind), raw_dtype=kind)
    for key, values in (extra or {}).items():
        writer.add_tensor(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors as a converter writes them, by their names in the file."""
    config = model.config
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[architecture], config.num_hidden_layers)

    def key_of(name: str) -> str:
        return names.get_name(name, try_suffixes=(".weight", ".bias")) or (
            names.get_name(name) + ".weight"
        )

    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.float().numpy()
        if ".experts." in name:
            for part, own in _experts(model, name, values):
                yield key_of(part), np.ascontiguousarray(own)
            continue
        key = key_of(name)
        if architecture in ("llama", "smollm3"):
            values = _as_stored(key, values)
        if architecture.startswith("gemma") and key.endswith("norm.weight"):
            values = values + 1
        yield key, values.squeeze(0) if "shexp" in key and len(values) == 1 else values


def _experts(model: Any, name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Gate and up apart, and out features before in features."""
    layer, _, parameter = name.rpartition(".")
    experts, is_bias = model.get_submodule(layer), parameter.endswith("_bias")
    suffix = "bias" if is_bias else "weight"
    if experts.is_transposed and not is_bias:
        values = values.swapaxes(1, 2)
    if "gate_up" not in parameter:
        yield f"{layer}.down_proj.{suffix}", values
        return
    half = values.shape[1] // 2
    parts = (values[:, :half], values[:, half:])
    if not experts.is_concatenated:
        parts = (values[:, ::2], values[:, 1::2])
    yield f"{layer}.gate_proj.{suffix}", parts[0]
    yield f"{layer}.up_proj.{suffix}", parts[1]


def _blocks(values: np.ndarray, kind: Kind) -> np.ndarray:
    try:
        return gguf.quantize(values, kind)
    except NotImplementedError:
        format = FORMATS[kind.name]
        *rows, columns = values.shape
        blocks = random_blocks(Make(), kind.name, math.prod(rows), columns // format.weights)
        return blocks.flatten(1).unflatten(0, rows).numpy()


def load_gguf(path: Path) -> Any:
    """The model as transformers loads it: dequantised to float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()


def _as_stored(key: str, values: np.ndarray) -> np.ndarray:
    """The permutation of convert_hf_to_gguf.py: rotary pairs become neighbours."""
    heads = HEADS if "attn_q" in key else KEY_HEADS if "attn_k" in key else None
    if heads is None:
        return values
    split = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))
