"""Experts of models of transformers with `experts_implementation="fusewheel"` beside "eager"."""

from __future__ import annotations

import copy
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from integrations.tiny_models import SIZES, tokens
from nightly import NIGHTLY
from oracle import assert_as_good_as_call, assert_program_as_good_as_eager
from torch import Tensor

transformers = pytest.importorskip("transformers")

EXPERTS, CHOSEN = 6, 2
MIXTURE = {
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": 24,
    "intermediate_size": 24,
}
# DeepSeek and GLM have dense layers first, and groups.
GROUPS = {"n_group": 3, "topk_group": 2, "first_k_dense_replace": 1, "n_shared_experts": 1}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
MODELS: dict[str, dict[str, Any]] = {
    "Mixtral": {},
    "Qwen3Moe": {"norm_topk_prob": True},
    "Olmoe": {},
    "DeepseekV3": GROUPS | LATENT | {"v_head_dim": 8, "num_key_value_heads": 4},
    "GptOss": {"sliding_window": 5},
    "Glm4Moe": GROUPS,
}


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    fusewheel.transformers.register()


def build(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | MIXTURE | MODELS[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    model.set_experts_implementation("eager")
    return model


def with_experts(model: Any, implementation: str = "fusewheel") -> Any:
    twin = copy.deepcopy(model)
    twin.set_experts_implementation(implementation)
    return twin


def experts_of(model: Any) -> Any:
    return next(m for m in model.modules() if hasattr(m, "_apply_gate"))


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


def results(model: Any, dtype: torch.dtype, exact: bool = False) -> list[Tensor]:
    """What the experts of a model make of some tokens, and all gradients."""
    module = experts_of(model)
    parameters = list(module.parameters())
    for i, parameter in enumerate(parameters):
        values = Make(dtype, seed=i)(*parameter.shape, scale=0.3)
        parameter.data = values.double() if exact else values
        parameter.grad = None
    x = Make(dtype)(11, SIZES["hidden_size"])
    weights, indices = fusewheel.route(Make(seed=9)(11, EXPERTS), CHOSEN)
    given = x, weights.to(dtype)
    x, weights = ((t.double() if exact else t).requires_grad_() for t in given)
    y = module(x, indices, weights)
    grad = Make(dtype, seed=5)(*y.shape)
    y.backward(grad.to(y.dtype))
    return [y.detach(), x.grad, weights.grad, *(p.grad for p in parameters)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradients(model: Any, dtype: torch.dtype) -> None:
    got = results(with_experts(model), dtype)
    eager, exact = (
        results(copy.deepcopy(model), dtype),
        results(copy.deepcopy(model), dtype, exact=True),
    )
    for i, values in enumerate(zip(got, eager, exact, strict=True)):
        assert_program_as_good_as_eager(*values, what=f"result {i}")


def test_a_whole_model(model: Any) -> None:
    ids = tokens(2, 9)
    with torch.no_grad():
        assert_as_good_as_call(with_experts(model)(input_ids=ids).logits, model, input_ids=ids)


def test_patch_takes_the_experts_too() -> None:
    model = build("Olmoe")
    plain, ids = copy.deepcopy(model), tokens(1, 5)
    report = fusewheel.patch(model)
    assert "experts" in report.replaced[""]
    assert model.config._experts_implementation == "fusewheel"
    assert_as_good_as_call(model(input_ids=ids).logits, plain, input_ids=ids)
    fusewheel.unpatch(model)
    assert model.config._experts_implementation == "eager"


class Calls(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts grouped products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func).startswith("fusewheel.grouped_linear.")
        return func(*args, **(kwargs or {}))


def test_two_products_for_each_layer(model: Any) -> None:
    mixtures = sum(hasattr(m, "_apply_gate") for m in model.modules())
    with torch.no_grad(), Calls() as calls:
        with_experts(model)(input_ids=tokens(1, 4))
    assert mixtures > 0 and calls.count == 2 * mixtures


def test_experts_of_other_devices_give_zero(model: Any) -> None:
    module = experts_of(with_experts(model))
    x, weights = Make()(4, SIZES["hidden_size"]), torch.ones(4, 2)
    with torch.no_grad():
        own = module(x, torch.tensor([[0], [1], [2], [3]]), weights[:, :1])
        indices = torch.tensor([[0, EXPERTS], [1, EXPERTS], [EXPERTS, 2], [EXPERTS, 3]])
        torch.testing.assert_close(module(x, indices, weights), own)


@pytest.mark.parametrize("name", [pytest.param(name, marks=NIGHTLY) for name in MODELS])
def test_compiled_without_breaks_and_for_any_routing(name: str) -> None:
    plain = build(name)
    model = with_experts(plain)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="fusewheel", fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(3):
            torch.manual_seed(seed)
            ids = torch.randint(3, 60, (2, 9))
            got = compiled(input_ids=ids, use_cache=False).logits
            assert_as_good_as_call(got, plain, input_ids=ids, use_cache=False)
