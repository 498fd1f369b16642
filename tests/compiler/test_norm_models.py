"""The norms of encoders, GPT-2 and a vision transformer, as Hugging Face writes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nightly import models_in_ways
from torch import Tensor

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 16,
    "attn_implementation": "sdpa",
}
NO_DROPOUT = dict.fromkeys(
    ("attention_dropout", "dropout", "attention_probs_dropout_prob", "hidden_dropout_prob",
     "embd_pdrop", "resid_pdrop", "attn_pdrop"), 0.0,
)  # fmt: skip
IMAGES = {"image_size": 8, "patch_size": 4, "num_channels": 3}
TOKENS = ("wte", "word_embeddings", "embed_in", "embed_tokens")  # not used with `inputs_embeds`
# Two norms in each of the two layers and one before or after them. The embeddings are no sum of two
# tensors of one shape, except those of RoBERTa. GPT-NeoX has two norms of one sum in a layer.
WAYS = {
    "fp32": (torch.float32, "aot_eager"),
    "bf16": (torch.bfloat16, "aot_eager"),
    "fp32-none": (torch.float32, "none"),
}
MODELS: dict[str, dict[str, int]] = {
    "GPT2Model": {"layer_norm": 1, "add_layer_norm": 4},
    "GPTNeoXModel": {"layer_norm": 3, "add_layer_norm": 2},
    "BertModel": {"layer_norm": 1, "add_layer_norm": 4},
    "RobertaModel": {"add_layer_norm": 5},
    "ViTModel": {"layer_norm": 1, "add_layer_norm": 4},
    "OlmoModel": {"layer_norm": 1, "add_layer_norm": 4},
}


def build(name: str) -> torch.nn.Module:
    """A small random model whose norm weights are not all alike."""
    torch.manual_seed(0)
    config = getattr(transformers, name.replace("Model", "Config"))
    settings = SIZES | NO_DROPOUT | (IMAGES if name == "ViTModel" else {})
    keywords = {"add_pooling_layer": False} if name.startswith(("Bert", "Roberta", "ViT")) else {}
    model: torch.nn.Module = getattr(transformers, name)(config(**settings), **keywords)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def without_casts(model: torch.nn.Module) -> torch.nn.Module:
    """The model in float64, where OLMo's norms would compute in float32."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__ == "OlmoLayerNorm":
                shape = child.normalized_shape
                setattr(module, name, torch.nn.LayerNorm(shape, elementwise_affine=False))
    return model.double()


def embeddings(name: str) -> Tensor:
    """What a model is fed so that gradients reach its input too."""
    return torch.randn(2, 3, 8, 8) if name == "ViTModel" else torch.randn(2, 5, 32)


@pytest.mark.parametrize(("name", "dtype", "inner"), models_in_ways(MODELS, WAYS))
def test_training_step(compare: Any, name: str, dtype: torch.dtype, inner: str) -> None:
    """Outputs, and the gradients of the input and of every parameter."""
    model = build(name).to(dtype)
    exact = without_casts(build(name).to(dtype))
    names = [n for n, _ in model.named_parameters() if not any(t in n for t in TOKENS)]
    keyword = "pixel_values" if name == "ViTModel" else "inputs_embeds"
    parameters = dict(model.named_parameters())

    def run(module: torch.nn.Module) -> Any:
        def call(x: Tensor, *given: Tensor) -> Tensor:
            replaced = dict(zip(names, given, strict=True))
            output: Tensor = torch.func.functional_call(module, replaced, (), {keyword: x})[0]
            return output

        return call

    inputs = embeddings(name).to(dtype).requires_grad_(), *(parameters[n] for n in names)
    report = compare(run(model), *inputs, inner=inner, exact=run(exact), whole=True)
    counts = {pattern: n for pattern, n in report.counts().items() if "norm" in pattern}
    assert counts == MODELS[name], report
