"""Low-rank adapters of the package peft on layers with quantised weights.

It is imported only after peft.
"""

from __future__ import annotations

from typing import Any

from peft.tuners import tuners_utils
from peft.tuners.lora.config import LoraConfig
from peft.tuners.lora.layer import Linear
from peft.tuners.lora.model import LoraModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from fusewheel.quantization.block_modules import LinearBlocks
from fusewheel.quantization.checkpoints import Reordered
from fusewheel.quantization.modules import LinearInt4, LinearInt8

LAYERS = (LinearBlocks, LinearInt4, LinearInt8, Reordered)


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


def register_lora() -> None:
    """Lets `get_peft_model` with a `LoraConfig` adapt layers with quantised weights."""
    create = LoraModel._create_new_module
    include = tuners_utils._maybe_include_all_linear_layers

    def create_new_module(lora_config: Any, adapter_name: str, target: Any, **options: Any) -> Any:
        base = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
        if isinstance(base, LAYERS):
            return LoraQuantizedLinear(target, adapter_name, config=lora_config, **options)
        return create(lora_config, adapter_name, target, **options)

    def include_all(config: Any, model: nn.Module) -> Any:
        asked = config.target_modules if isinstance(config, LoraConfig) else None
        config = include(config, model)
        if isinstance(asked, str) and asked.lower() == "all-linear":
            config.target_modules = {*config.target_modules, *_quantized_layers(model)}
        return config

    LoraModel._create_new_module = staticmethod(create_new_module)  # type: ignore[method-assign]
    tuners_utils._maybe_include_all_linear_layers = include_all  # type: ignore[assignment]


def _quantized_layers(model: nn.Module) -> set[str]:
    """The names of all layers that peft would take if they were `Linear`: not the output layer."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    names = {n for n, m in model.named_modules() if isinstance(m, LAYERS) and m is not output}
    # Parts of a `Reordered`, and of layers that have an adapter already, are no layers themselves.
    return {n for n in names if n.rpartition(".")[0] not in names and "base_layer" not in n}
