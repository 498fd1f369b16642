"""The name of an argument that transformers has renamed."""

from __future__ import annotations

import inspect
from functools import cache


@cache
def cache_argument() -> str:
    """The name under which models of the installed transformers take their cache.

    It is ``cache`` from transformers 5.24 on, ``past_key_values`` before.
    """
    from transformers import GenerationMixin

    prepared = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    return "cache" if "cache" in prepared else "past_key_values"
