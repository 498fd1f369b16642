"""The layer of the package peft for low-rank adapters on quantised weights.

It is imported only after peft.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn
from torch.nn.functional import linear


class LoraQuantizedLinear(Linear):
    """peft's LoRA on a layer whose weight is codes. It cannot be merged into them."""

    def _get_in_out_features(self, module: nn.Module) -> tuple[Any, Any]:
        return module.in_features, module.out_features

    @property
    def lora_variants(self) -> dict[tuple[str, ...], Any]:
        """Those that do not read the weight of the layer."""
        known = super().lora_variants
        return {names: known[names] for names in ((), ("alora_invocation_tokens",))}

    def forward(self, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """The result of the layer plus that of its adapters.

        peft multiplies adapters in float32 if that is the dtype of their weights. If `x` is
        bfloat16, a single plain adapter is multiplied in bfloat16 here, as under autocast; its
        weights and their gradients stay float32.
        """
        name = self._plain_adapter() if x.dtype is torch.bfloat16 else None
        if arguments or options or name is None:
            result: Tensor = super().forward(x, *arguments, **options)
            return result
        parts: list[Any] = [kind[name] for kind in (self.lora_A, self.lora_B, self.lora_dropout)]
        down, up = (part.weight.to(x.dtype) for part in parts[:2])
        own = self.base_layer(x)
        low = linear(parts[2](x), down) * self.scaling[name]
        sums = torch.addmm(own.flatten(0, -2), low.flatten(0, -2), up.t())
        return sums.view(own.shape)

    def _plain_adapter(self) -> str | None:
        """The name of the active adapter, if there is one and it is only two matrices."""
        active = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(active) != 1:
            return None
        (name,) = active
        is_plain = name not in self.lora_variant and self.lora_B[name].bias is None
        return name if is_plain else None

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
