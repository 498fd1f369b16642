"""A small Llama in a GGUF file, with the types of SmolLM2's: Q4_1 blocks, a Q8_0 embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
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


def write_gguf(path: Path, model: Any, linear: Kind = Kind.Q4_1) -> None:
    """Write the weights as llama.cpp's converter does."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        key = names.get_name(name, try_suffixes=(".weight",))
        values = _as_stored(key, weight.float().numpy())
        kind = Kind.F32 if values.ndim == 1 else Kind.Q8_0 if "token_embd" in key else linear
        writer.add_tensor(key, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
