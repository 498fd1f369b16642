"""Tiny language models in folders, in the formats of quantised checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import stored_layers
import torch

SIZES = {
    **{"vocab_size": 40, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True},
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True}
BITS = {
    **{"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bnb_4bit_use_double_quant": True,
}
FORMATS: dict[str, tuple[dict[str, Any], Any]] = {
    "gptq": (
        GPTQ,
        lambda *sizes: stored_layers.gptq(*sizes, act_order=True),
    ),
    "gptq8": (
        {**GPTQ, "bits": 8, "checkpoint_format": "gptq_v2"},
        lambda *sizes: stored_layers.gptq(*sizes, bits=8, less=0),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        lambda *sizes: stored_layers.awq(*sizes),
    ),
    "nf4": (BITS, lambda *sizes: stored_layers.bitsandbytes(*sizes)),
    "fp8": (
        {"quant_method": "fp8", "weight_block_size": [64, 64], "activation_scheme": "dynamic"},
        lambda *sizes: stored_layers.fp8(*sizes, block=(64, 64), seed=1),
    ),
}


def write(folder: Path, name: str, change: Any = None) -> Any:
    """Writes a checkpoint; returns the model with the weights that it stands for, in float32.

    `change` may change the tensors before they are written.
    """
    import transformers
    from safetensors.torch import save_file

    about, build = FORMATS[name]
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES)
    base = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    state = base.state_dict()
    for key, linear in base.model.named_modules():
        if type(linear) is torch.nn.Linear:
            tensors, weight = build(*linear.weight.shape)
            # Weights as large as those of a trained layer.
            del state[f"model.{key}.weight"]
            state |= {f"model.{key}.{part}": tensor for part, tensor in tensors.items()}
            with torch.no_grad():
                linear.weight.copy_(weight)
    if change:
        change(state)
    folder.mkdir(exist_ok=True)
    state = {key: tensor.contiguous() for key, tensor in state.items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    written["quantization_config"] = about
    (folder / "config.json").write_text(json.dumps(written))
    return base
