"""transformers loads quantised checkpoints, saves them again, and peft adapts them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.quantization import LinearBlocks, LinearInt4, LinearInt8
from fusewheel.quantization.checkpoints import Reordered
from oracle import assert_program_as_good_as_eager
from stored_checkpoints import FORMATS, GPTQ, write

transformers = pytest.importorskip("transformers")
auto = pytest.importorskip("transformers.quantizers.auto")
safetensors_torch = pytest.importorskip("safetensors.torch")

IDS = torch.arange(8)[None]
# peft asks transformers for something by an old name.
OLD_NAME = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
LAYERS = (LinearBlocks, LinearInt4, LinearInt8, Reordered)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """For one test, because other tests load models as transformers does."""
    monkeypatch.setattr(auto, "AUTO_QUANTIZER_MAPPING", dict(auto.AUTO_QUANTIZER_MAPPING))
    fusewheel.register_quantizers()
    fusewheel.register_quantizers()


def load(folder: Path, **options: Any) -> Any:
    options = {"dtype": torch.float32} | options
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def same_logits(model: Any, base: Any) -> None:
    with torch.no_grad():
        exact = copy.deepcopy(base).double()
        found = [m(IDS).logits for m in (model, base, exact)]
        assert_program_as_good_as_eager(*found)


@pytest.mark.parametrize("name", FORMATS)
def test_a_checkpoint_is_loaded_saved_and_loaded_again(tmp_path, name):
    base = write(tmp_path / "first", name)
    model = load(tmp_path / "first")
    layers = [m for m in model.modules() if isinstance(m, LAYERS) and hasattr(m, "stored_as")]
    assert len(layers) == 7
    assert not any(p.is_meta for p in (*model.parameters(), *model.buffers()))
    floating = {type(m) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    assert floating == {torch.nn.Linear}, "the output layer alone is not quantised"
    assert sum(type(m) is torch.nn.Linear for m in model.modules()) == 1
    assert torch.equal(model.model.layers[0].self_attn.q_proj.bias, attention(base).q_proj.bias)
    same_logits(model, base)
    model.save_pretrained(tmp_path / "second")
    about = json.loads((tmp_path / "second" / "config.json").read_text())["quantization_config"]
    assert about["quant_method"] == FORMATS[name][0]["quant_method"]
    again = load(tmp_path / "second")
    first, second = model.state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    for key, tensor in first.items():
        assert torch.equal(tensor, second[key]), key


def attention(model: Any) -> Any:
    return model.model.layers[0].self_attn


def test_a_checkpoint_of_the_base_model(tmp_path):
    """Its names lack the prefix "model."."""
    write(tmp_path, "nf4")
    file = tmp_path / "model.safetensors"
    state = safetensors_torch.load_file(file)
    inner = {k.removeprefix("model."): t for k, t in state.items() if k != "lm_head.weight"}
    model = load(tmp_path)
    safetensors_torch.save_file(inner, file, {"format": "pt"})
    other = transformers.AutoModel.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(other(IDS)[0], model.model(IDS)[0])


def test_dtype_is_that_of_the_activations(tmp_path):
    write(tmp_path, "gptq")
    model = load(tmp_path, dtype=torch.bfloat16)
    assert model(IDS).logits.dtype == torch.bfloat16
    assert attention(model).q_proj.bias.dtype == torch.bfloat16


def spoil(key: str, change: Any) -> Any:
    def run(state: dict[str, torch.Tensor]) -> None:
        name = f"model.layers.0.mlp.up_proj.{key}"
        if change is None:
            del state[name]
        else:
            state[name] = change(state[name])

    return run


@pytest.mark.parametrize(
    ("name", "key", "change", "message"),
    [
        ("gptq", "scales", None, "layer 'model.layers.0.mlp.up_proj' lacks scales"),
        ("gptq", "scales", torch.Tensor.double, "up_proj': scales must be float16 or bfloat16"),
        ("gptq", "scales", lambda t: t / 0, "up_proj': scales must be finite"),
        ("nf4", "weight", lambda t: t[1:], "up_proj': weight must have 4096 bytes"),
    ],
)
def test_bad_checkpoints(tmp_path, name, key, change, message):
    write(tmp_path, name, spoil(key, change))
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_what_is_not_supported_is_refused(tmp_path):
    def rename(state: dict[str, torch.Tensor]) -> None:
        for key in [key for key in state if "up_proj" in key]:
            state[key.replace("up_proj", "other")] = state.pop(key)

    write(tmp_path, "awq", rename)
    with pytest.raises(ValueError, match=r"layers.0.mlp.other', which is no linear layer"):
        load(tmp_path)
    write(tmp_path, "awq")
    for about, message in (
        ({**FORMATS["awq"][0], "version": "gemv"}, "only AWQ in version 'gemm'"),
        (GPTQ, "layer 'model.layers.0.mlp.down_proj': qweight has"),
    ):
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": about}))
        with pytest.raises(ValueError, match=message):
            load(tmp_path)


def test_models_that_are_not_quantised_take_the_quantizer_of_transformers(tmp_path):
    config = transformers.FineGrainedFP8Config()
    made = auto.AutoHfQuantizer.from_config(config, pre_quantized=False)
    assert type(made) is transformers.quantizers.quantizer_finegrained_fp8.FineGrainedFP8HfQuantizer
    made = auto.AutoHfQuantizer.from_config(config, pre_quantized=True)
    assert type(made).__name__ == "Fp8Quantizer"


def test_layers_of_quantize_are_not_saved_as_if_they_were_of_the_checkpoint(tmp_path):
    write(tmp_path, "nf4")
    model = load(tmp_path)
    fusewheel.quantize_(model, "int4")
    with pytest.raises(ValueError, match="layer 'lm_head' was not in the checkpoint"):
        model.save_pretrained(tmp_path / "again")


@OLD_NAME
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gptq", "nf4"])
def test_peft_adapts_and_trains(tmp_path, name, dtype):
    peft = pytest.importorskip("peft")
    base = write(tmp_path, name)
    models = load(tmp_path, dtype=dtype), copy.deepcopy(base).to(dtype), base.double()
    wanted = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    found = []
    for model in models:
        torch.manual_seed(1)
        adapted = peft.get_peft_model(model, copy.deepcopy(wanted))
        adapted = adapted.double() if model.dtype == torch.float64 else adapted
        trained = {n: p for n, p in adapted.named_parameters() if p.requires_grad}
        assert len(trained) == 14
        adapted(IDS, labels=IDS).loss.backward()
        assert all(p.grad is not None and p.grad.dtype == p.dtype for p in trained.values())
        found.append({n: p.grad for n, p in trained.items()})
    assert found[0].keys() == found[1].keys()
    # Together, relative to the largest of each: a few hundred numbers alone say little.
    largest = {key: grad.abs().max() for key, grad in found[2].items()}
    joined = [torch.cat([(g / largest[k]).flatten() for k, g in each.items()]) for each in found]
    assert_program_as_good_as_eager(*joined)


def test_peft_on_layers_of_every_kind(tmp_path):
    peft = pytest.importorskip("peft")
    for kind in ("int4", "int8", "nf4"):
        model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 8, bias=False))
        fusewheel.quantize_(model, kind)
        x = torch.randn(3, 64)
        want = model(x)
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["1"]))
        assert torch.equal(adapted(x), want), "a new adapter adds nothing"
        adapted(x).sum().backward()
        with pytest.raises(ValueError, match="an adapter cannot be merged into a Linear"):
            adapted.merge_and_unload()
        adapted.save_pretrained(tmp_path / kind)
        assert torch.equal(adapted.unload()(x), want)
        again = peft.PeftModel.from_pretrained(model, tmp_path / kind)
        assert torch.equal(again(x), want)
        options = {"target_modules": ["1"], "init_lora_weights": "pissa"}
        with pytest.raises(ValueError, match="init_lora_weights must be True, False or 'gaussian'"):
            again.add_adapter("other", peft.LoraConfig(**options))
