"""The layer of the package peft for low-rank adapters on quantised weights.

It is imported only after peft.
"""

from __future__ import annotations

from typing import Any

from peft.tuners.lora.layer import Linear
from torch import nn


class LoraQuantizedLinear(Linear):
    """peft's LoRA on a layer whose weight is codes. It cannot be merged into them."""

    def _get_in_out_features(self, module: nn.Module) -> tuple[Any, Any]:
        return module.in_features, module.out_features

    @property
    def lora_variants(self) -> dict[tuple[str, ...], Any]:
        """Those that do not read the weight of the layer."""
        known = super().lora_variants
        return {names: known[names] for names in ((), ("alora_invocation_tokens",))}

    def update_layer(self, adapter_name: str, *arguments: Any, **options: Any) -> None:
        """Adds an adapter.

        Raises:
            ValueError: its initialisation, or its kind, needs a floating weight.
        """
        start = options["config"].init_lora_weights
        if not isinstance(start, bool) and start != "gaussian":
            raise ValueError(
                f"init_lora_weights must be True, False or 'gaussian' on a "
                f"{type(self.get_base_layer()).__name__}, whose weight is quantised, got {start!r}"
            )
        super().update_layer(adapter_name, *arguments, **options)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Refused: the sum would have to be rounded to codes again.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"an adapter cannot be merged into a {type(self.get_base_layer()).__name__}: its "
            "weight is quantised, and the sum would have to be rounded again. Keep the adapter, "
            "or merge it into the model that was not quantised"
        )
