"""The configuration of a transformers model from the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

from fusewheel.quantization.gguf_file import GgufFile

# By architecture in the file: `model_type` of transformers.
MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

_REQUIRED = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
}
_OPTIONAL = {"attention.head_count_kv": "num_key_value_heads"}
_TOKENS = ("bos_token_id", "eos_token_id", "padding_token_id")


def read_config(file: GgufFile) -> Any:
    """The configuration, of transformers' own class.

    Raises:
        ValueError: the architecture is not supported, a value is missing or has a wrong type, or
            the file asks for rotary embeddings that are not supported.
    """
    from transformers import AutoConfig

    architecture = file.metadata.get("general.architecture")
    if architecture not in MODEL_TYPES:
        raise ValueError(
            f"load_gguf: {file.path} has architecture {architecture!r}; supported are "
            f"{', '.join(MODEL_TYPES)}"
        )

    def value(key: str, default: Any = None) -> Any:
        found = file.metadata.get(f"{architecture}.{key}", default)
        if found is not None and (isinstance(found, bool) or not isinstance(found, (int, float))):
            raise ValueError(f"load_gguf: {file.path} has no number for {architecture}.{key}")
        return found

    found: dict[str, Any] = {}
    for key, name in _REQUIRED.items():
        found[name] = value(key)
        if not found[name] or found[name] < 0:
            raise ValueError(f"load_gguf: {file.path} must say {architecture}.{key}")
    found |= {name: value(key) for key, name in _OPTIONAL.items() if value(key) is not None}
    heads = found["num_attention_heads"]
    found["head_dim"] = value("attention.key_length", found["hidden_size"] // heads)
    _check_rotary(file, architecture, value("rope.dimension_count", found["head_dim"]), found)
    found["rope_theta"] = float(value("rope.freq_base", 10000.0))
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ValueError(f"load_gguf: {file.path} has no tensor 'token_embd.weight'")
    found["vocab_size"] = embedding.shape[0]
    found["tie_word_embeddings"] = "output.weight" not in file.tensors
    if architecture == "llama":
        found["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    for name in _TOKENS:
        token = file.metadata.get(f"tokenizer.ggml.{name}")
        found[name.replace("padding", "pad")] = token if isinstance(token, int) else None
    return AutoConfig.for_model(MODEL_TYPES[architecture], **found)


def _check_rotary(
    file: GgufFile, architecture: str, dimensions: int, found: dict[str, Any]
) -> None:
    scaling = file.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise ValueError(
            f"load_gguf: {file.path} scales its rotary embeddings ({scaling!r}), which is not "
            "supported"
        )
    if dimensions != found["head_dim"]:
        raise ValueError(
            f"load_gguf: {file.path} rotates {dimensions} of {found['head_dim']} dimensions of a "
            "head; only all of them are supported"
        )
