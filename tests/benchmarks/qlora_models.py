"""Models with NF4 weights and low-rank adapters: by bitsandbytes, and by fusewheel."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import fusewheel
import torch
from fusewheel._core.cache_argument import cache_argument
from torch import Tensor, nn

RANK = 8
# SmolLM2-135M. The numbers are random: only times are compared.
SHAPE: dict[str, Any] = {
    **{"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536},
    **{"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3},
    "tie_word_embeddings": True,
}
BITSANDBYTES, FUSEWHEEL, COMPILED = "bitsandbytes", "fusewheel", "compiled"
MODES = (BITSANDBYTES, FUSEWHEEL, COMPILED)


def has_bitsandbytes() -> bool:
    """Whether the rival is installed."""
    return importlib.util.find_spec("bitsandbytes") is not None


def adapted(mode: str, shape: dict[str, Any], dtype: torch.dtype) -> Any:
    """The model of a mode: equal weights in NF4, adapters on all linear layers but the last."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape)).to(dtype)
    if mode == BITSANDBYTES:
        _quantise_by_bitsandbytes(model, dtype)
    else:
        fusewheel.quantize_(model, "nf4", filter_fn=lambda _, name: name != "lm_head")
    config = LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    made = get_peft_model(model, config)
    if mode == COMPILED:
        made.compile(backend="fusewheel")
    return made


def _quantise_by_bitsandbytes(model: Any, dtype: torch.dtype) -> None:
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, layer in list(model.named_modules()):
        if type(layer) is not nn.Linear or name == "lm_head":
            continue
        made = Linear4bit(
            layer.in_features, layer.out_features, bias=False, compute_dtype=dtype, quant_type="nf4"
        )
        weight = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
        made.weight = weight
        model.set_submodule(name, made.to("cpu"))  # which quantises
    model.is_loaded_in_4bit = True  # peft asks for it


def step(model: Any, ids: Tensor) -> Callable[[], Tensor]:
    """A step of training of the adapters; returns the loss."""
    model.train()
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=1e-4)

    def run() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return run


def token(model: Any, ids: Tensor) -> Callable[[], Tensor]:
    """One token after a short text, with a cache that does not grow."""
    from transformers import DynamicCache

    model.eval()

    @torch.no_grad()
    def run() -> Tensor:
        cache = DynamicCache()
        logits: Tensor = model(input_ids=ids[:1, :1], **{cache_argument(): cache}).logits
        return logits

    return run
