"""Training steps that return only their loss: the logits of the last layer never exist."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from nightly import NIGHTLY
from oracle import assert_program_as_good_as_eager
from torch import nn
from training import wide

assert fusewheel
Tensor = torch.Tensor
CLASSES, WIDTH, HEADS = 96, 32, 4


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.out = nn.Linear(WIDTH, WIDTH, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, width]`."""
        parts = self.qkv(x).split(WIDTH, dim=2)
        q, k, v = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(x.shape))


class NanoGPT(nn.Module):
    """As nanoGPT is written, embedding and last layer tied; the loss alone is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(CLASSES, WIDTH), nn.Embedding(64, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.attention = Attention(bias=True)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1)))
        x = x + self.attention(self.norms[0](x))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        logits = self.head(self.norms[2](x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]`."""
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-5)


class Titan(nn.Module):
    """As torchtitan trains Llama: a model that gives logits, and a loss that widens them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.norms = nn.ModuleList(Norm() for _ in range(3))
        self.attention = Attention(bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, CLASSES, bias=False)

    def logits(self, ids: Tensor) -> Tensor:
        """`[batch, tokens, classes]`."""
        x = self.tokens(ids)
        x = x + self.attention(self.norms[0](x))
        h = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        y: Tensor = self.output(self.norms[2](x))
        return y

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        return F.cross_entropy(wide(self.logits(ids).flatten(0, 1)), targets.flatten(0, 1))


def _results(model: nn.Module, call: Callable[..., Tensor], *inputs: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss = call(*inputs)
    loss.backward()
    return {"loss": loss.detach()} | {n: p.grad for n, p in model.named_parameters()}


def _assert_step(compare: Any, build: type[nn.Module], dtype: torch.dtype, inner: str) -> Any:
    model, exact = build(), build().double()
    ids, targets = torch.randint(CLASSES, (8, 32)), torch.randint(CLASSES, (8, 32))
    model = model.to(dtype)
    exact.load_state_dict(model.state_dict())
    compiled, recorder = compare.compile(model, inner, fullgraph=True)
    got, eager = (_results(model, call, ids, targets) for call in (compiled, model))
    truth = _results(exact, exact, ids, targets)
    # All gradients as one vector: which tensors eager is lucky with is a matter of chance.
    for names in (["loss"], [name for name in got if name != "loss"]):
        vectors = (torch.cat([r[n].flatten() for n in names]) for r in (got, eager, truth))
        assert_program_as_good_as_eager(*vectors, what=names[0])
    return recorder.report()


# Both have three norms, the first of which is of no sum of two tensors of one shape.
MODELS: dict[type[nn.Module], dict[str, int]] = {
    NanoGPT: {"layer_norm": 1, "add_layer_norm": 2, "gelu": 1, "linear_cross_entropy": 1},
    Titan: {"rms_norm": 1, "add_rms_norm": 2, "silu_mul": 1, "linear_cross_entropy": 1},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("build", MODELS)
def test_training_step(compare: Any, build: type[nn.Module], dtype: torch.dtype) -> None:
    report = _assert_step(compare, build, dtype, "aot_eager")
    # Whether linear layers are replaced depends on the processor.
    found = {name: n for name, n in report.counts().items() if name != "linear"}
    assert found == MODELS[build], report


@NIGHTLY
def test_with_inductor(compare: Any) -> None:
    report = _assert_step(compare, NanoGPT, torch.float32, "inductor")
    assert report.counts() == MODELS[NanoGPT], report


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_loss_compiled_alone(compare: Any) -> None:
    """Torchtitan's own way: model and loss are two graphs."""
    model = Titan()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))

    compiled, recorder = compare.compile(loss)
    ids = torch.randint(CLASSES, (2, 16))
    expected = _results(model, lambda i: loss(model.logits(i), i), ids)
    actual = _results(model, lambda i: compiled(model.logits(i), i), ids)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, msg=name)
    assert recorder.report().counts() == {"cross_entropy": 1}


def _llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=1, num_attention_heads=HEADS,
        num_key_value_heads=2, head_dim=8, vocab_size=CLASSES,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


@pytest.mark.parametrize("counted", [pytest.param(False, marks=NIGHTLY), True])
def test_llama_of_which_only_the_loss_is_used(compare: Any, counted: bool) -> None:
    model = _llama()

    def step(ids: Tensor) -> Tensor:
        extra = {"num_items_in_batch": torch.tensor(37)} if counted else {}
        loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False, **extra).loss
        return loss

    compiled, recorder = compare.compile(step)
    ids = torch.randint(CLASSES, (2, 16))
    expected, actual = (_results(model, call, ids) for call in (step, compiled))
    model = copy.deepcopy(model).double()
    exact = _results(model, step, ids)
    for name, value in expected.items():
        assert_program_as_good_as_eager(actual[name], value, exact[name], name)
    assert recorder.report().count("linear_cross_entropy") == 1, recorder.report()


def test_llama_that_returns_its_logits() -> None:
    ids = torch.randint(CLASSES, (2, 16))
    report = fusewheel.explain(_llama(), input_ids=ids, labels=ids)
    assert report.count("cross_entropy") == 1
    (refusal,) = [r for r in report.refusals if r.pattern != "attention"]
    assert refusal.pattern == "linear_cross_entropy"
    assert refusal.reason == "the logits are returned as well"
