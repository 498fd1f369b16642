"""The configuration of a transformers model from the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

from fusewheel.quantization.gguf.architectures import ARCHITECTURES, Architecture
from fusewheel.quantization.gguf.file import GgufFile
from fusewheel.quantization.gguf.rotary import rotary
from fusewheel.quantization.gguf.values import Values

_REQUIRED = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
_TOKENS = ("bos_token_id", "eos_token_id", "padding_token_id")


def architecture_of(file: GgufFile) -> Architecture:
    """The architecture that a file names.

    Raises:
        ValueError: it is not supported.
    """
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ValueError(
            f"load_gguf: {file.path} has architecture {name!r}; supported are "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


def read_config(file: GgufFile) -> Any:
    """The configuration, of transformers' own class.

    Raises:
        ValueError: the architecture is not supported, a value is missing or has a wrong type, or
            the file asks for rotary embeddings that are not supported.
    """
    from transformers import AutoConfig

    architecture, values = architecture_of(file), Values(file)
    found: dict[str, Any] = {name: values.count(key) for key, name in _REQUIRED.items()}
    found["rms_norm_eps"] = float(values.positive("attention.layer_norm_rms_epsilon"))
    heads = found["num_attention_heads"]
    found["num_key_value_heads"] = values.count("attention.head_count_kv", heads)
    found["head_dim"] = values.count("attention.key_length", found["hidden_size"] // heads)
    if heads % found["num_key_value_heads"] or found["head_dim"] < 2:
        values.refuse(
            f"has {heads} heads of {found['head_dim']} dimensions, which share "
            f"{found['num_key_value_heads']} key heads"
        )
    dimensions = values.count("rope.dimension_count", found["head_dim"])
    if dimensions != found["head_dim"] and not architecture.partial_rotary:
        values.refuse(
            f"rotates {dimensions} of {found['head_dim']} dimensions of a head; only all of them "
            "are supported"
        )
    found["tie_word_embeddings"] = not values.has("output.weight")
    for name in _TOKENS:
        token = file.metadata.get(f"tokenizer.ggml.{name}")
        found[name.replace("padding", "pad")] = token if isinstance(token, int) else None
    found |= {"model_type": architecture.model_type} | architecture.options(values)
    if "rope_parameters" not in found:
        found["rope_parameters"] = rotary(values)
    if found["num_hidden_layers"] > len(file.tensors):
        values.refuse(f"has {len(file.tensors)} tensors for {found['num_hidden_layers']} layers")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        values.refuse("has no tensor 'token_embd.weight'")
    found["vocab_size"] = embedding.shape[0]
    return AutoConfig.for_model(found.pop("model_type"), **found)
