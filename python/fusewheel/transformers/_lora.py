"""Lets the package peft put low-rank adapters on layers with quantised weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from fusewheel.quantization.block_modules import LinearBlocks
from fusewheel.quantization.checkpoints import Reordered
from fusewheel.quantization.modules import LinearInt4, LinearInt8

LAYERS = (LinearBlocks, LinearInt4, LinearInt8, Reordered)


def register_lora() -> None:
    """Lets `get_peft_model` with a `LoraConfig` adapt layers with quantised weights."""
    from peft.tuners import tuners_utils
    from peft.tuners.lora.config import LoraConfig
    from peft.tuners.lora.model import LoraModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    create = LoraModel._create_new_module
    include = tuners_utils._maybe_include_all_linear_layers

    def create_new_module(lora_config: Any, adapter_name: str, target: Any, **options: Any) -> Any:
        base = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
        if isinstance(base, LAYERS):
            # Not earlier: peft may be in the middle of its import, on behalf of this very module.
            from fusewheel.transformers._lora_layer import LoraQuantizedLinear

            return LoraQuantizedLinear(target, adapter_name, config=lora_config, **options)
        return create(lora_config, adapter_name, target, **options)

    def include_all(config: Any, model: nn.Module) -> Any:
        asked = config.target_modules if isinstance(config, LoraConfig) else None
        config = include(config, model)
        if isinstance(asked, str) and asked.lower() == "all-linear":
            config.target_modules = {*config.target_modules, *_quantized_layers(model)}
        return config

    model_class: Any = LoraModel
    model_class._create_new_module = staticmethod(create_new_module)
    utilities: Any = tuners_utils
    utilities._maybe_include_all_linear_layers = include_all


def _quantized_layers(model: nn.Module) -> set[str]:
    """The names of all layers that peft would take if they were `Linear`: not the output layer."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    names = {n for n, m in model.named_modules() if isinstance(m, LAYERS) and m is not output}
    # Parts of a `Reordered`, and of layers that have an adapter already, are no layers themselves.
    return {n for n in names if n.rpartition(".")[0] not in names and "base_layer" not in n}
