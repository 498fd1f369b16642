"""Makes attention and experts of fusewheel known to transformers."""

from __future__ import annotations

from fusewheel.transformers._attention import attention_forward
from fusewheel.transformers._experts import experts_forward
from fusewheel.transformers._masks import mask

NAME = "fusewheel"
"""The value of `attn_implementation` for which `fusewheel.attention` runs, and that of
`experts_implementation` for which `fusewheel.grouped_linear` does.
"""


def register() -> None:
    """Adds `attn_implementation="fusewheel"` and `experts_implementation="fusewheel"` to
    transformers. Call it before a model is loaded with them; more calls do no harm.

    A model with this implementation of attention calls `fusewheel.attention`: with grouped heads,
    sliding windows, attention sinks (gpt-oss), a soft cap (Gemma 2), padding and packed sequences,
    in inference and in training. Scores are not materialised, so attention weights are not returned
    (`output_attentions=True` is an error).

    A mixture of experts with this implementation of experts computes them by
    `fusewheel.grouped_linear`: tokens are sorted by expert, nothing is padded, and no weight is
    copied. It takes any weights that transformers keeps as three-dimensional parameters, in
    inference and in training. transformers without `ExpertsInterface` has no such choice.

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
    try:
        from transformers.integrations.moe import ExpertsInterface
    except ImportError:
        return  # before transformers 5
    ExpertsInterface.register(NAME, experts_forward)
