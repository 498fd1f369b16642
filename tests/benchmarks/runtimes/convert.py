"""Writes one model for transformers and for llama.cpp: `python -m benchmarks.runtimes.convert`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.runtimes.models import MODELS
from fusewheel.demo.models.text import TRAINING
from fusewheel.demo.models.weights import find_gguf

# Names of transformers and of llama.cpp.
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main() -> None:
    """The name of the model and the folder are the arguments."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    source, auto = find_gguf(), AutoModelForCausalLM
    config = MODELS[name]
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder / "hf")
    (folder / "prompt.json").write_text(json.dumps(tokenizer(TRAINING)["input_ids"]))
    torch.manual_seed(0)
    if config is None:
        stored: Any = auto.from_pretrained(source.parent, gguf_file=source.name)
        # What was read from a GGUF file can not be saved: a model of its own holds the weights.
        settings = stored.config.to_dict()
        settings.pop("quantization_config", None)
        model: Any = auto.from_config(LlamaConfig(**settings))
        model.load_state_dict(stored.state_dict())
        os.symlink(source, folder / "model.gguf")
    else:
        model = auto.from_config(LlamaConfig(**config))
        write_gguf(model, source, folder / "model.gguf")
    model.save_pretrained(folder / "hf")


def write_gguf(model: Any, source: Path, path: Path) -> None:
    """A Llama in Q4_1, its output layer in Q8_0, with the tokenizer of another file."""
    from gguf import GGMLQuantizationType as Type
    from gguf import GGUFReader, GGUFWriter, quants

    config = model.config
    writer = GGUFWriter(path, "llama")
    _describe(writer, config)
    _copy_tokenizer(writer, GGUFReader(source))
    for name, ours, heads in _tensors(config):
        values = model.get_parameter(f"{name}.weight").detach().float().numpy()
        if heads:
            values = _interleaved(values, heads)
        if values.ndim == 1:
            writer.add_tensor(f"{ours}.weight", values)
            continue
        kind = Type.Q8_0 if ours == "token_embd" else Type.Q4_1
        writer.add_tensor(f"{ours}.weight", quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: Any) -> None:
    from gguf import LlamaFileType

    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_1)


def _copy_tokenizer(writer: Any, reader: Any) -> None:
    from gguf import GGUFValueType

    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)


def _tensors(config: Any) -> list[tuple[str, str, int]]:
    """Names there and here, and the heads of what llama.cpp wants in another order."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    found = [("model.embed_tokens", "token_embd", 0), ("model.norm", "output_norm", 0)]
    for layer in range(config.num_hidden_layers):
        found += [
            (f"model.layers.{layer}.{name}", f"blk.{layer}.{ours}", heads.get(ours, 0))
            for name, ours in _LAYER.items()
        ]
    return found


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of halves that turn together side by side."""
    rows, columns = values.shape
    halves = values.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


if __name__ == "__main__":
    main()
