"""Hugging Face models with a loss: logits, loss and gradients before the oracle, in one frame."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from compiler.test_models import settled
from nightly import models_in_ways
from oracle import assert_step_as_good_as_eager
from torch._dynamo.testing import CompileCounterWithBackend

assert fusewheel
transformers = pytest.importorskip("transformers")
Tensor = torch.Tensor
CLASSES = 64
Inputs = dict[str, Tensor]
NO_DROPOUT = dict.fromkeys(
    ("dropout", "attention_dropout", "activation_dropout", "dropout_rate",
     "hidden_dropout_prob", "attention_probs_dropout_prob", "embd_pdrop", "resid_pdrop",
     "attn_pdrop"), 0.0,
)  # fmt: skip


def _tokens(length: int) -> Tensor:
    return torch.randint(3, CLASSES, (2, length))


def _config(name: str, **sizes: Any) -> Any:
    kind = getattr(transformers, f"{name}Config")
    known = {key: value for key, value in NO_DROPOUT.items() if hasattr(kind(), key)}
    return kind(vocab_size=CLASSES, **known, **sizes)


def _whisper() -> tuple[Any, Inputs]:
    config = _config(
        "Whisper", d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8,
        max_source_positions=12, max_target_positions=16, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(2, 8, 24).bfloat16().float(), "labels": _tokens(7)}
    return transformers.WhisperForConditionalGeneration(config), inputs


def _t5() -> tuple[Any, Inputs]:
    config = _config(
        "T5", d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    inputs = {"input_ids": _tokens(9), "labels": _tokens(7)}
    return transformers.T5ForConditionalGeneration(config), inputs


def _minilm() -> tuple[Any, Inputs]:
    """The encoder as sentence embeddings use it: padded sentences, the mean of their tokens."""
    config = _config(
        "Bert", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
    )
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    inputs = {"input_ids": _tokens(9), "attention_mask": mask}
    return _Embedding(transformers.BertModel(config, add_pooling_layer=False)), inputs


class _Embedding(torch.nn.Module):
    """Sentences that are to be like one another."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """The unit vectors, and the cosine of the first two as a loss."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        vectors = torch.nn.functional.normalize(mean, dim=-1)
        return {"logits": vectors, "loss": (vectors[0] * vectors[1]).sum()}


def _qwen2() -> tuple[Any, Inputs]:
    config = _config(
        "Qwen2", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    ids = _tokens(9)
    return transformers.Qwen2ForCausalLM(config), {"input_ids": ids, "labels": ids}


def _gpt2() -> tuple[Any, Inputs]:
    """Its loss is named: what is guessed comes with a warning, which would break the graph."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16}
    model = transformers.GPT2LMHeadModel(_config("GPT2", **sizes, bos_token_id=1, eos_token_id=2))
    model.loss_type = "ForCausalLM"
    ids = _tokens(9)
    return model, {"input_ids": ids, "labels": ids}


def _bert() -> tuple[Any, Inputs]:
    """A loss of the masked tokens alone."""
    config = _config(
        "Bert", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
    )
    labels = _tokens(9)
    labels[:, ::3] = -100
    return transformers.BertForMaskedLM(config), {"input_ids": _tokens(9), "labels": labels}


def _vit() -> tuple[Any, Inputs]:
    config = _config(
        "ViT", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        image_size=16, patch_size=4, num_labels=5,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(4, 3, 16, 16).bfloat16().float()}
    return transformers.ViTForImageClassification(config), inputs | {"labels": torch.arange(4)}


# Each encoder and decoder has 2 layers. Whisper: 2 norms in a layer of the encoder, 3 in one of
# the decoder, one at the end of each; of a sum but the first of both. Its encoder has 2 gelus more
# around its convolutions. T5 the same, and a ReLU. BERT has a norm and a gelu more in its head.
DTYPES = {"fp32": (torch.float32,), "bf16": (torch.bfloat16,)}
MODELS: dict[str, tuple[Callable[[], tuple[Any, Inputs]], dict[str, int]]] = {
    "vit": (_vit, {"add_layer_norm": 4, "layer_norm": 1, "gelu": 2, "cross_entropy": 1}),
    "t5": (_t5, {"add_rms_norm": 10, "rms_norm": 2, "cross_entropy": 1}),
    "minilm": (_minilm, {"add_layer_norm": 4, "layer_norm": 1, "gelu": 2}),
    "whisper": (
        _whisper,
        {"add_layer_norm": 10, "layer_norm": 2, "gelu": 6, "cross_entropy": 1},
    ),
    "gpt2": (_gpt2, {"add_layer_norm": 4, "layer_norm": 1, "gelu": 2, "cross_entropy": 1}),
    "bert": (_bert, {"add_layer_norm": 4, "layer_norm": 2, "gelu": 3, "cross_entropy": 1}),
    "qwen2": (
        _qwen2,
        {"add_rms_norm": 4, "rms_norm": 1, "silu_mul": 2, "rope": 2, "cross_entropy": 1},
    ),
}


def _step(model: Any, call: Any, inputs: Inputs) -> list[Tensor]:
    """Logits, loss, and every gradient in one vector."""
    model.zero_grad(set_to_none=True)
    output = call(**inputs)
    output["loss"].backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return [output["logits"].detach(), output["loss"].detach(), torch.cat(gradients)]


@pytest.mark.parametrize(("name", "dtype"), models_in_ways(MODELS, DTYPES))
def test_training_step(compare: Any, name: str, dtype: torch.dtype) -> None:
    make, counts = MODELS[name]
    model, inputs = make()
    # Numbers that every dtype can hold; norms whose weights are not all alike.
    model = model.bfloat16().train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model = model.to(dtype)
    counter = CompileCounterWithBackend("eager")
    compiled, recorder = compare.compile(model, counter, fullgraph=True)
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    got, eager = _step(model, compiled, given), _step(model, model, given)
    assert settled(recorder.report().counts()) == counts, recorder.report()
    assert counter.frame_count == 1
    twin = copy.deepcopy(model).double()
    exact = _step(
        twin, twin, {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    )
    assert_step_as_good_as_eager(got, eager, exact)
