"""A small Llama in a GGUF file, with the types of SmolLM2's: Q4_1 blocks, a Q8_0 embedding."""

from __future__ import annotations

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
) -> None:
    """Write the weights as llama.cpp's converter does.

    `tokens` are those of a byte-level tokenizer, which merges what gives tokens of two characters;
    `scaling` has what the file says about rotary embeddings.

    Types that the package gguf cannot quantise get random blocks, whatever the model's weights are.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // HEADS
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
        writer.add_token_types([1] * len(tokens))
        writer.add_token_merges([f"{pair[0]} {pair[1]}" for pair in tokens if len(pair) == 2])
        writer.add_eos_token_id(0)
    for key, value in (scaling or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](f"{config.model_type}.rope.scaling.{key}", value)
    architectures = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(architectures[config.model_type], config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        key = names.get_name(name, try_suffixes=(".weight", ".bias"))
        values = weight.float().numpy()
        if config.model_type == "llama":
            values = _as_stored(key, values)
        kind = Kind.F32 if values.ndim == 1 else embedding if "token_embd" in key else linear
        writer.add_tensor(key, _blocks(values, kind), raw_dtype=kind)
    for key, values in (extra or {}).items():
        writer.add_tensor(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _blocks(values: np.ndarray, kind: Kind) -> np.ndarray:
    try:
        return gguf.quantize(values, kind)
    except NotImplementedError:
        format = FORMATS[kind.name]
        rows, columns = values.shape
        blocks = random_blocks(Make(), kind.name, rows, columns // format.weights)
        return blocks.flatten(1).numpy()


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
