"""Unmodified Hugging Face models: what is replaced, and that nothing else changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel._core.cache_argument import cache_argument
from fusewheel.compiler.entry.dynamo import compile_graph
from fusewheel.compiler.match.report import Recorder
from nightly import NIGHTLY, models_in_ways
from oracle import (
    assert_as_good_as_call,
    assert_program_as_good_as_eager,
    assert_step_as_good_as_eager,
)
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# The number of layers is 2. The first norm is that of the embeddings, which are no sum; one more
# stands before the head. Queries and keys have norms of their own in Qwen3 and Olmo2, and Olmo2
# normalises before it adds.
DTYPES = {"fp32": (torch.float32,), "bf16": (torch.bfloat16,)}
MODELS: dict[str, dict[str, int]] = {
    "Llama": {"add_rms_norm": 4, "rms_norm": 1, "silu_mul": 2, "rope": 2},
    "Mistral": {"add_rms_norm": 4, "rms_norm": 1, "silu_mul": 2, "rope": 2},
    "Qwen3": {"add_rms_norm": 4, "rms_norm": 5, "silu_mul": 2, "rope": 2},
    "Gemma": {"add_rms_norm": 4, "rms_norm": 1, "gelu_mul": 2, "rope": 2},
    "Phi3": {"add_rms_norm": 4, "rms_norm": 1, "silu_mul_packed": 2, "rope": 2},
    "Olmo2": {"add_rms_norm": 1, "rms_norm": 8, "silu_mul": 2, "rope": 2},
    "Ernie4_5": {"add_rms_norm": 4, "rms_norm": 1, "silu_mul": 2, "rope": 2},
    "Glm": {"add_rms_norm": 4, "rms_norm": 1, "silu_mul_packed": 2, "rope": 2},
}
# With labels the model returns its loss too.
LOSS = {"cross_entropy": 1}
CASTS = {"Llama": 0, "Gemma": 1, "Olmo2": 2}


def build(name: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """A small random model; its norm weights are not all alike."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **settings})
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).train()


def tokens(length: int = 16, batch: int = 2) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(3, 128, (batch, length))


def step(model: Any, call: Any, ids: torch.Tensor, **inputs: Any) -> dict[str, torch.Tensor]:
    """Logits, loss and every gradient of one training step."""
    model.zero_grad(set_to_none=True)
    output = call(input_ids=ids, labels=ids, **inputs)
    output.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    return {"logits": output.logits.detach(), "loss": output.loss.detach(), **gradients}


def settled(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts without those that depend on more than the model.

    Whether linear layers are replaced depends on the processor, whether transformers
    builds a causal mask at all on its version and that of PyTorch.
    """
    return {k: n for k, n in counts.items() if k not in ("linear", "causal_attention")}


def vectors(results: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Logits, loss, and all gradients as one vector."""
    logits, loss, *gradients = results.values()
    return [logits, loss, torch.cat([gradient.flatten() for gradient in gradients])]


def exact_step(model: Any, ids: torch.Tensor, **inputs: Any) -> dict[str, torch.Tensor]:
    """A training step in float64, with the loss in float32 as the models compute it."""
    twin = copy.deepcopy(model).double()
    results = step(twin, twin, ids, **inputs)
    rows = results["logits"][:, :-1].flatten(0, 1)
    results["loss"] = torch.nn.functional.cross_entropy(rows, ids[:, 1:].flatten())
    return results


def assert_training_step(model: Any, call: Any, ids: torch.Tensor, **inputs: Any) -> None:
    """A training step by `call` is as good as one by the model itself."""
    runs = step(model, call, ids, **inputs), step(model, model, ids, **inputs)
    exact = exact_step(model, ids, **inputs)
    assert_step_as_good_as_eager(*map(vectors, (*runs, exact)))


class Counted:
    """A rewriting backend that counts what it compiles."""

    def __init__(self, inner: str = "aot_eager") -> None:
        self.recorder = Recorder()
        self.counter = CompileCounterWithBackend(inner)
        self.casts: set[int] = set()

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled = compile_graph(gm, inputs, self.recorder, self.counter)
        norms = (torch.ops.fusewheel.rms_norm.default, torch.ops.fusewheel.add_rms_norm.default)
        self.casts |= {node.args[-1] for node in gm.graph.nodes if node.target in norms}
        return compiled


@pytest.mark.parametrize(("name", "dtype"), models_in_ways(MODELS, DTYPES))
def test_training_step(name: str, dtype: torch.dtype) -> None:
    model, ids, backend = build(name, dtype), tokens(), Counted()
    call = torch.compile(model, backend=backend, fullgraph=True)
    assert_training_step(model, call, ids)
    assert settled(backend.recorder.report().counts()) == MODELS[name] | LOSS
    assert backend.counter.frame_count == 1
    if dtype == torch.bfloat16 and name in CASTS:
        assert backend.casts == {CASTS[name]}


@NIGHTLY  # a change compiles another model so, tests/compiler/test_loss_models.py
def test_llama_by_name_with_inductor() -> None:
    """What the README promises, with the real inner compiler."""
    model, ids = build("Llama"), tokens()
    call = torch.compile(model, backend="fusewheel", options={"inner": "inductor"})
    counters.clear()
    assert_training_step(model, call, ids)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_dynamic_length() -> None:
    # AOTAutograd makes Dynamo start over once where a Python number is symbolic.
    model, backend = build("Llama"), Counted("eager")
    call = torch.compile(model, backend=backend, dynamic=True)
    for length in (16, 23, 9):
        ids = tokens(length)
        assert_training_step(model, call, ids)
    assert backend.counter.frame_count == 1
    assert settled(backend.recorder.report().counts()) == MODELS["Llama"] | LOSS


@NIGHTLY  # a change compiles for any length at once
def test_automatic_dynamic_length() -> None:
    model, backend = build("Llama"), Counted()
    call = torch.compile(model, backend=backend)
    for length in (16, 23, 9, 31):
        ids = tokens(length)
        assert_training_step(model, call, ids)
    assert backend.counter.frame_count == 2  # static first, dynamic from then on


# A change runs another model without gradients, tests/compiler/test_causal_models.py.
@pytest.mark.parametrize("mode", [pytest.param(torch.no_grad, marks=NIGHTLY), torch.inference_mode])
def test_inference(mode: Any) -> None:
    model, ids, backend = build("Llama").eval(), tokens(), Counted()
    call = torch.compile(model, backend=backend)
    with mode():
        assert_as_good_as_call(call(ids).logits, model, ids)
    assert settled(backend.recorder.report().counts()) == MODELS["Llama"]
    assert backend.counter.frame_count == 1


def test_padding_mask() -> None:
    model, ids, backend = build("Llama"), tokens(), Counted()
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    call = torch.compile(model, backend=backend)
    assert_training_step(model, call, ids, attention_mask=mask)
    assert settled(backend.recorder.report().counts()) == MODELS["Llama"] | LOSS


def test_autocast() -> None:
    model, ids, backend = build("Llama"), tokens(), Counted()
    call = torch.compile(model, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        runs = step(model, call, ids), step(model, model, ids)
    # The residual stream is float32 and what is added to it bfloat16.
    counts = {"rms_norm": 5, "silu_mul": 2, "rope": 2} | LOSS
    assert settled(backend.recorder.report().counts()) == counts, backend.recorder.report()
    assert_step_as_good_as_eager(*map(vectors, (*runs, exact_step(model, ids))))


def test_gradient_checkpointing() -> None:
    model, ids, backend = build("Llama"), tokens(), Counted()
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    call = torch.compile(model, backend=backend)
    assert_training_step(model, call, ids, use_cache=False)
    # The last addition of a layer is inside of what is checkpointed, the norm behind it is not.
    counts = MODELS["Llama"] | {"add_rms_norm": 2, "rms_norm": 3} | LOSS
    report = backend.recorder.report()
    assert settled(report.counts()) == counts, report
    # The mask is made outside of the bodies.
    assert report.count("causal_attention") == 2, report


def test_generation_with_a_cache() -> None:
    model, backend = build("Llama").eval(), Counted("eager")
    call = torch.compile(model, backend=backend)
    ids = tokens(8)
    with torch.no_grad():
        twin = copy.deepcopy(model).double()
        states = [(run, None, []) for run in (call, model, twin)]
        results = []
        for run, cache, logits in states:
            for inputs in (ids, ids[:, :1], ids[:, 1:2]):
                output = run(inputs, **{cache_argument(): cache}, use_cache=True)
                cache = output[cache_argument()]
                logits.append(output.logits)
            results.append(torch.cat(logits, 1))
    assert_program_as_good_as_eager(*results)
    assert backend.recorder.report().count("rope") == 2 * backend.counter.frame_count


def test_explain_llama() -> None:
    report = fusewheel.explain(build("Llama"), input_ids=tokens())
    assert settled(report.counts()) == MODELS["Llama"]
    assert (report.graphs, report.graph_breaks) == (1, ())
    # Its sequences are short.
    assert {refusal.pattern for refusal in report.refusals} == {"attention"}
    assert "modeling_llama.py" in str(report)
