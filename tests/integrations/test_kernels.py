"""Layers for the package kernels, which transformers uses for `use_kernels=True`."""

from __future__ import annotations

import copy
import importlib.util
import sys
from types import ModuleType
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.transformers._kernels import LAYERS, FusedRMSNorm, FusedRotary
from neighbours import assert_call_as_good_as_eager
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
HERE = importlib.util.find_spec("kernels") is not None


def test_the_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    stand_in = ModuleType("kernels")
    stand_in.register_kernel_mapping = given.append
    monkeypatch.setitem(sys.modules, "kernels", stand_in)
    fusewheel.transformers.register_kernels()
    (mapping,) = given
    assert {name: set(devices) for name, devices in mapping.items()} == {
        "RMSNorm": {"cpu", "cuda"},
        "rotary_pos_emb": {"cpu", "cuda"},
        **{name: {"cpu", "cuda"} for name in ("GeLU", "GeluTanh", "NewGELU", "FastGELU")},
    }
    assert mapping["RMSNorm"]["cpu"].load() is FusedRMSNorm
    assert str(mapping["RMSNorm"]["cpu"]) == "fusewheel's FusedRMSNorm"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernels", None)
    with pytest.raises(ImportError, match="pip install kernels"):
        fusewheel.transformers.register_kernels()


@pytest.mark.parametrize("layer", LAYERS.values(), ids=str)
def test_a_layer_is_what_kernels_asks_for(layer: Any) -> None:
    """No state and no members of its own, as kernels checks before it uses a class."""
    kind = layer.load()
    members = set(dir(kind)) - set(dir(nn.Module))
    assert members <= {"can_torch_compile", "has_backward"}
    assert kind.__init__ is nn.Module.__init__


@pytest.mark.parametrize("name", ["llama", "olmo2"])
def test_the_norm_rounds_as_the_layer_it_replaces(name: str) -> None:
    module = getattr(transformers.models, name)
    kind = next(
        value
        for key, value in vars(getattr(module, f"modeling_{name}")).items()
        if key.endswith("RMSNorm")
    )
    norm, x = kind(64).bfloat16(), torch.randn(50, 64).bfloat16()
    with torch.no_grad():
        norm.weight.add_(torch.randn(64) * 0.3)
    got = FusedRMSNorm.forward(norm, x)
    assert (got == norm(x)).float().mean() > 0.99


@pytest.mark.parametrize("dim", [1, 2])
def test_rotary(dim: int) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    heads = (2, 4, 5, 8) if dim == 1 else (2, 5, 4, 8)
    q, k = torch.randn(heads), torch.randn(heads)
    cos, sin = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    got = FusedRotary()(q, k, cos, sin, dim)
    torch.testing.assert_close(got, apply_rotary_pos_emb(q, k, cos, sin, dim))


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("GeLU", "GELUActivation"),
        ("GeluTanh", "GELUTanh"),
        ("NewGELU", "NewGELUActivation"),
        ("FastGELU", "FastGELUActivation"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_activations(layer: str, name: str, dtype: torch.dtype) -> None:
    """Values and gradients, judged beside those of the layer that is replaced."""
    kind = getattr(transformers.activations, name)
    fused, replaced = LAYERS[layer].load()(), kind()
    arguments = tuple(torch.randn(2, 2000).to(dtype).unbind())
    assert_call_as_good_as_eager(_value_and_gradient, fused, replaced, arguments, layer)


def _value_and_gradient(function: Any, arguments: tuple[Any, ...]) -> list[Tensor]:
    x, grad = arguments[0].detach().requires_grad_(), arguments[1]
    y = function(x)
    return [y.detach(), *torch.autograd.grad(y, x, grad)]


@pytest.mark.skipif(not HERE, reason="the package kernels is not installed")
def test_kernelize() -> None:
    import kernels

    @kernels.use_kernel_forward_from_hub("RMSNorm")
    class NormRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.rand(16)), 1e-6

        def forward(self, hidden_states: Tensor) -> Tensor:
            return nn.functional.rms_norm(hidden_states, (16,), self.weight, self.variance_epsilon)

    model, x = nn.Sequential(NormRMSNorm()), torch.randn(3, 16)
    want = model(x)
    fusewheel.transformers.register_kernels()
    model = kernels.kernelize(model, mode=kernels.Mode.TRAINING, device="cpu")
    assert model[0].forward.__func__ is FusedRMSNorm.forward
    torch.testing.assert_close(model(x), want)


@pytest.mark.skipif(not HERE, reason="the package kernels is not installed")
@pytest.mark.parametrize("copied", ["before", "after"])
def test_a_copied_model_rotates_by_the_function_of_all(copied: str) -> None:
    """The package kernels replaces a function in the module's list, and calls the one of the file.

    `copy.deepcopy` copies that list with the function, so that what is replaced in a copy is not
    what its forward calls. Norms are modules of the model: the copy's own are replaced.
    """
    import kernels

    @kernels.use_kernel_forward_from_hub("rotary_pos_emb")
    def rotate(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        return q, k

    @kernels.use_kernelized_func(rotate)
    class Attention(nn.Module):
        def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
            return rotate(*given)

    def kernelized(model: nn.Module) -> nn.Module:
        return kernels.kernelize(model, mode=kernels.Mode.TRAINING, device="cpu")

    fusewheel.transformers.register_kernels()
    model = nn.Sequential(Attention())
    if copied == "after":
        model = kernelized(model)
    other = kernelized(copy.deepcopy(model))
    given = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8), torch.rand(3, 8), torch.rand(3, 8)
    want = fusewheel.rope(*given) if copied == "after" else given[:2]
    for one in (model, other):
        assert all(map(torch.equal, one[0](*given), want))


@pytest.mark.skipif(
    not transformers.utils.is_kernels_available(),
    reason="this transformers takes another version of kernels; `nox -s hub_kernels` has a pair",
)
@pytest.mark.parametrize(
    ("model", "operators"), [("llama", {"rms_norm", "rope"}), ("gpt2", {"gelu"})]
)
def test_use_kernels(model: str, operators: set[str]) -> None:
    """The model's values and gradients, by the operators and not by its own layers."""
    config = transformers.AutoConfig.for_model(
        model, vocab_size=32, hidden_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    config.intermediate_size, config.num_key_value_heads = 128, 2
    given, fused = (transformers.AutoModelForCausalLM.from_config(config).eval() for _ in "ab")
    fused.load_state_dict(given.state_dict())
    fusewheel.transformers.register_kernels()
    fused.set_use_kernels(True)

    def reference(x: Tensor) -> Tensor:
        return copy.deepcopy(given).to(x.dtype)(inputs_embeds=x).logits

    def own(x: Tensor) -> Tensor:
        return fused(inputs_embeds=x).logits

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        own(torch.randn(1, 5, 64))
    called = {event.key for event in profile.key_averages()}
    assert {f"fusewheel::{name}" for name in operators} <= called
    arguments = torch.randn(2, 20, 64), torch.randn(2, 20, 32)
    assert_call_as_good_as_eager(_value_and_gradient, own, reference, arguments, model)
