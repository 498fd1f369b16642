"""Makes `fusewheel.attention` known to transformers."""

from __future__ import annotations

from fusewheel.transformers._attention import attention_forward
from fusewheel.transformers._masks import mask

NAME = "fusewheel"
"""The value of `attn_implementation` for which `fusewheel.attention` runs."""


def register() -> None:
    """Adds `attn_implementation="fusewheel"` to transformers. Call it before a model is loaded
    with it; more calls do no harm.

    A model with this implementation calls `fusewheel.attention`: with grouped heads, sliding
    windows, attention sinks (gpt-oss), a soft cap (Gemma 2), padding and packed sequences, in
    inference and in training. Scores are not materialised, so attention weights are not returned
    (`output_attentions=True` is an error).

    Raises:
        ImportError: transformers is not installed, or is too old to have `AttentionInterface` and
            `AttentionMaskInterface`.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "fusewheel.transformers.register needs the package transformers, version 5 or newer: "
            f"pip install -U transformers ({error})"
        ) from error
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, mask)
