"""The configuration of a transformers model from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
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
# What a file may say about scaled rotary embeddings. `finetuned` says nothing about the model.
_SCALING = {"type", "factor", "original_context_length", "finetuned"}
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
    dimensions = value("rope.dimension_count", found["head_dim"])
    if dimensions != found["head_dim"]:
        raise ValueError(
            f"load_gguf: {file.path} rotates {dimensions} of {found['head_dim']} dimensions of a "
            "head; only all of them are supported"
        )
    found["rope_parameters"] = _rotary(file, architecture, value)
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


def _rotary(
    file: GgufFile, architecture: str, value: Callable[..., int | float | None]
) -> dict[str, Any]:
    """What transformers calls the parameters of rotary embeddings."""
    found: dict[str, Any] = {"rope_theta": float(value("rope.freq_base", 10000.0) or 0)}
    prefix = f"{architecture}.rope.scaling."
    said = {key[len(prefix) :] for key in file.metadata if key.startswith(prefix)}
    kind = file.metadata.get(f"{prefix}type", "none")
    if kind == "none":
        return found | {"rope_type": "default"}
    if kind not in ("linear", "yarn") or said - _SCALING:
        raise ValueError(
            f"load_gguf: {file.path} scales its rotary embeddings ({kind!r}, {sorted(said)}); "
            "supported are 'linear' and 'yarn' with a factor and an original_context_length"
        )
    sizes = {"factor": value("rope.scaling.factor")}
    if kind == "yarn":
        sizes["original_context_length"] = value("rope.scaling.original_context_length")
    for name, size in sizes.items():
        if not size or size < 0:
            raise ValueError(f"load_gguf: {file.path} must say {prefix}{name}")
    found |= {"rope_type": kind, "factor": float(sizes["factor"] or 0)}
    if kind == "yarn":
        found["original_max_position_embeddings"] = int(sizes["original_context_length"] or 0)
    return found
