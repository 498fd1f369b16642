"""Every architecture that can be loaded from a GGUF file, beside the dequantised model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import fusewheel
import gguf
import numpy as np
import pytest
import torch
from fusewheel.quantization import QuantizedExperts
from fusewheel.quantization.gguf.architectures import ARCHITECTURES
from fusewheel.quantization.gguf.file import GgufFile
from gguf import GGMLQuantizationType as Kind
from oracle import assert_program_as_good_as_eager
from tiny_gguf import HEADS, KEY_HEADS, write_gguf

IDS = torch.arange(1, 13)[None]
SIZES = {
    "vocab_size": 67,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 5, "num_local_experts": 5, "num_experts_per_tok": 2}
COUNTS = {"expert_count": 5, "expert_used_count": 2}
INNER = {"moe_intermediate_size": 32}
INNER_SAID = {"expert_feed_forward_length": 32}
WINDOW = {"attention.sliding_window": 5}
SHARED = {"shared_expert_intermediate_size": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
YARN_SAID = {"type": "yarn", "factor": 4.0, "original_context_length": 16}
# transformers' configuration, its options, what the file says beside what all say.
Case = tuple[str, dict[str, Any], dict[str, Any]]
MODELS: dict[str, Case] = {
    "llama": ("Mistral", {"sliding_window": None}, {}),
    "llama of experts": ("Mixtral", EXPERTS, COUNTS),
    "qwen2": ("Qwen2", {}, {}),
    "qwen2moe": (
        "Qwen2Moe",
        EXPERTS | INNER | SHARED,
        COUNTS | INNER_SAID | {"expert_shared_feed_forward_length": 64},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}, {}),
    "qwen3moe": ("Qwen3Moe", EXPERTS | INNER | {"norm_topk_prob": True}, COUNTS | INNER_SAID),
    "gemma": ("Gemma", {"head_dim": 32}, {}),
    "gemma2": (
        "Gemma2",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 5},
        WINDOW | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (
        "Gemma3Text",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 5, "num_hidden_layers": 6},
        WINDOW,
    ),
    "phi3": ("Phi3", {"sliding_window": 5, "pad_token_id": 0}, WINDOW),
    "olmoe": ("Olmoe", EXPERTS | {"clip_qkv": 4.0}, COUNTS | {"attention.clamp_kqv": 4.0}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "pad_token_id": 0}, {}),
    "gpt-oss": (
        "GptOss",
        EXPERTS
        | {"head_dim": 32, "sliding_window": 5}
        | {"rope_parameters": YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}},
        COUNTS | WINDOW | {"expert_feed_forward_length": 96},
    ),
}


def test_every_architecture_has_a_case():
    assert {name.split()[0] for name in MODELS} == set(ARCHITECTURES)


def rounded(values: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Rows as they are in the file."""
    array = values.numpy()
    return torch.from_numpy(np.ascontiguousarray(gguf.dequantize(gguf.quantize(array, kind), kind)))


def dequantised(model: Any, kind: Kind) -> Any:
    """The model with the numbers that a file of it has."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            router = name.rpartition(".")[0].endswith((".mlp.gate", "router", "shared_expert_gate"))
            if parameter.dim() == 1 or router or name.endswith("_bias"):
                if "gemma" in model.config.model_type:
                    parameter.copy_((parameter + 1) - 1)
                continue
            own = Kind.Q8_0 if name.endswith("embed_tokens.weight") else kind
            turned = ".experts." in name and model.config.model_type == "gpt_oss"
            rows = parameter.transpose(1, 2) if turned else parameter
            values = rounded(rows.contiguous(), own)
            parameter.copy_(values.transpose(1, 2) if turned else values)
    return found


def build(name: str) -> Any:
    import transformers

    family, options, _ = MODELS[name]
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**SIZES | options)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that biases and norms count, and ties do not
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_dequantised_model(tmp_path: Path, name: str):
    model, said = build(name), MODELS[name][2]
    scaling = YARN_SAID if name == "gpt-oss" else None
    write_gguf(tmp_path / "m.gguf", model, Kind.Q5_0, scaling=scaling, metadata=said)
    loaded, _ = fusewheel.load_gguf(tmp_path / "m.gguf")
    assert type(loaded) is type(model) or name == "llama"
    mixtures = [m for m in loaded.modules() if isinstance(m, QuantizedExperts)]
    assert len(mixtures) == (2 if "expert_count" in said else 0)
    base = dequantised(model, Kind.Q5_0)
    if mixtures:
        base.set_experts_implementation("eager")  # that for float64
    exact = copy.deepcopy(base).double()
    with torch.no_grad():
        assert_program_as_good_as_eager(*(m(IDS).logits for m in (loaded, base, exact)))


@pytest.mark.parametrize("name", ["qwen3moe", "llama of experts"])
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.F32], ids=str)
def test_few_tokens_of_a_mixture_go_through_one_operator(tmp_path: Path, name: str, kind: Kind):
    """Gate and up, which the file has apart, are one weight, as the file stores it."""
    write_gguf(tmp_path / "m.gguf", build(name), kind, metadata=MODELS[name][2])
    loaded, _ = fusewheel.load_gguf(tmp_path / "m.gguf")
    with torch.no_grad(), torch.profiler.profile() as profile:
        loaded(IDS[:, :1])
    calls = [e.name for e in profile.events() if e.name.startswith("fusewheel::")]
    assert calls.count("fusewheel::experts") == 2
    assert not any("grouped" in call for call in calls)


def test_gate_and_up_of_two_kinds_stay_apart(tmp_path: Path):
    name = "qwen3moe"
    model, said = build(name), MODELS[name][2]
    path = tmp_path / "m.gguf"
    write_gguf(path, model, Kind.Q8_0, metadata=said, kinds={"ffn_gate_exps": Kind.Q4_0})
    loaded, _ = fusewheel.load_gguf(path)
    base = dequantised(model, Kind.Q8_0)
    for layer, own in zip(base.model.layers, model.model.layers, strict=True):
        gate = own.mlp.experts.gate_up_proj.detach()[:, :32].contiguous()
        layer.mlp.experts.gate_up_proj.data[:, :32] = rounded(gate, Kind.Q4_0)
    base.set_experts_implementation("eager")
    exact = copy.deepcopy(base).double()
    with torch.no_grad():
        assert_program_as_good_as_eager(*(m(IDS).logits for m in (loaded, base, exact)))


def test_a_file_that_became_shorter_is_refused(tmp_path: Path):
    path = tmp_path / "m.gguf"
    write_gguf(path, build("qwen3moe"), Kind.Q8_0, metadata=MODELS["qwen3moe"][2])
    file = GgufFile(path)
    name = "blk.1.ffn_up_exps.weight"
    whole = file.tensor(name).clone()
    assert all(torch.equal(file.read(name, e), own) for e, own in enumerate(whole))
    path.write_bytes(path.read_bytes()[: file.tensors[name].offset + 7])
    with pytest.raises(
        ValueError, match=r"was cut short while 'blk.1.ffn_up_exps.weight' was read"
    ):
        file.read(name, 0)
