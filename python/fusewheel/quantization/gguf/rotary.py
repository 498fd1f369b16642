"""Rotary embeddings: what a GGUF file says, as transformers' parameters."""

from __future__ import annotations

from typing import Any

from fusewheel.quantization.gguf.values import Values

# What a file may say about scaled rotary embeddings. `finetuned` says nothing about the model.
_SCALING = {"type", "factor", "original_context_length", "finetuned"}
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = {_LONG, _SHORT}
"""The tensors that `longrope` reads."""


def rotary(values: Values, base: float = 10000.0) -> dict[str, Any]:
    """The parameters; `base` is that of files that do not say theirs.

    Raises:
        ValueError: the file asks for a scaling that is not supported.
    """
    found: dict[str, Any] = {"rope_theta": float(values.number("rope.freq_base") or base)}
    prefix = values.name("rope.scaling.")
    metadata = values.file.metadata
    said = {key[len(prefix) :] for key in metadata if key.startswith(prefix)}
    kind = metadata.get(f"{prefix}type", "none")
    if kind == "none":
        return found | {"rope_type": "default"}
    if kind not in ("linear", "yarn") or said - _SCALING:
        values.refuse(
            f"scales its rotary embeddings ({kind!r}, {sorted(said)}); supported are 'linear' and "
            "'yarn' with a factor and an original_context_length"
        )
    found |= {"rope_type": kind, "factor": float(values.positive("rope.scaling.factor"))}
    if kind == "yarn":
        context = values.count("rope.scaling.original_context_length")
        found["original_max_position_embeddings"] = context
    return found


def longrope(values: Values) -> dict[str, Any]:
    """Of Phi-3 and Phi-4-mini: a factor for each frequency, others in long texts than in short.

    Raises:
        ValueError: the factors are not as many as frequencies, or no floating numbers.
    """
    head = values.count("embedding_length") // values.count("attention.head_count")
    rotated = values.count("rope.dimension_count", head)
    found: dict[str, Any] = {
        "rope_theta": float(values.number("rope.freq_base") or 10000.0),
        "partial_rotary_factor": rotated / head,
        "rope_type": "default",
    }
    if not (values.has(_LONG) and values.has(_SHORT)):
        return {"rope_parameters": found}
    original = values.count("rope.scaling.original_context_length")
    found |= {"rope_type": "longrope", "original_max_position_embeddings": original}
    for key, name in ((_LONG, "long_factor"), (_SHORT, "short_factor")):
        tensor = values.file.tensors[key]
        if tensor.kind is not None or tensor.shape != (rotated // 2,):
            values.refuse(
                f"must have {rotated // 2} floating factors in {key!r}, got shape "
                f"{list(tensor.shape)}"
            )
        found[name] = values.file.tensor(key).tolist()
    return {"rope_parameters": found, "original_max_position_embeddings": original}
