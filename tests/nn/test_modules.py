"""`fusewheel.nn`: state dictionaries, values and gradients of the modules they stand for."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusewheel import nn
from oracle import assert_as_good_as_eager, assert_program_as_good_as_eager
from torch import Tensor

transformers = pytest.importorskip("transformers")
CONFIG = transformers.LlamaConfig(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    attn_implementation="eager",
)
LLAMA = transformers.models.llama.modeling_llama
GEMMA = transformers.models.gemma.modeling_gemma
PHI = transformers.models.phi3.modeling_phi3


def pairs() -> dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[int, ...]]]:
    gemma = transformers.GemmaConfig(hidden_size=32, intermediate_size=48)
    phi = transformers.Phi3Config(hidden_size=32, intermediate_size=48, pad_token_id=0)
    x = (4, 7, 32)
    return {
        "RMSNorm": (lambda: nn.RMSNorm(32), lambda: torch.nn.RMSNorm(32), x),
        "RMSNorm, two": (lambda: nn.RMSNorm((7, 32)), lambda: torch.nn.RMSNorm((7, 32)), x),
        "RMSNorm, alone": (
            lambda: nn.RMSNorm(32, 1e-3, False),
            lambda: torch.nn.RMSNorm(32, 1e-3, False),
            x,
        ),
        "RMSNorm, Llama": (
            lambda: nn.RMSNorm(32, 1e-6, cast="llama"),
            lambda: LLAMA.LlamaRMSNorm(32),
            x,
        ),
        "RMSNorm, Gemma": (
            lambda: nn.RMSNorm(32, 1e-6, cast="gemma"),
            lambda: GEMMA.GemmaRMSNorm(32),
            x,
        ),
        "LayerNorm": (lambda: nn.LayerNorm((7, 32)), lambda: torch.nn.LayerNorm((7, 32)), x),
        "LayerNorm, no bias": (
            lambda: nn.LayerNorm(32, bias=False),
            lambda: torch.nn.LayerNorm(32, bias=False),
            x,
        ),
        "GELU": (lambda: nn.GELU(), lambda: torch.nn.GELU(), x),
        "GELU, tanh": (lambda: nn.GELU("tanh"), lambda: torch.nn.GELU("tanh"), x),
        "Linear": (lambda: nn.Linear(32, 9), lambda: torch.nn.Linear(32, 9), x),
        "SwiGLU": (lambda: nn.SwiGLU(32, 48), lambda: LLAMA.LlamaMLP(CONFIG), x),
        "SwiGLU, packed": (lambda: nn.SwiGLU(32, 48, packed=True), lambda: PHI.Phi3MLP(phi), x),
        "GeGLU": (lambda: nn.GeGLU(32, 48), lambda: GEMMA.GemmaMLP(gemma), x),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", pairs())
def test_as_what_it_stands_for(name: str, dtype: torch.dtype) -> None:
    make, make_other, shape = pairs()[name]
    own, other = make().to(dtype), make_other().to(dtype)
    assert [n for n, _ in own.named_parameters()] == [n for n, _ in other.named_parameters()]
    for a, b in zip(own.parameters(), other.parameters(), strict=True):
        assert name.startswith(("Linear", "SwiGLU", "GeGLU")) or torch.equal(a, b), "new weights"
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    own.load_state_dict(other.state_dict())
    # The norms of transformers compute in float32 whatever their dtype is.
    exact = (make if name.startswith("RMSNorm, ") else make_other)().double()
    exact.load_state_dict(other.state_dict())
    x = torch.randn(shape).to(dtype)
    slope = torch.randn(other(x).shape)
    found = [step(own, x, slope), step(other, x, slope), step(exact, x.double(), slope)]
    for k, triple in enumerate(zip(*found, strict=True)):
        assert_program_as_good_as_eager(*triple, f"{name}, {k}")


def step(module: Any, x: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
    leaf = x.detach().requires_grad_()
    y = module(leaf)
    leaves = [leaf, *module.parameters()]
    return y.detach(), *torch.autograd.grad(y, leaves, slope.to(y.dtype))


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (nn.RMSNorm, torch.nn.RMSNorm),
        (nn.LayerNorm, torch.nn.LayerNorm),
        (nn.GELU, torch.nn.GELU),
        (nn.Linear, torch.nn.Linear),
        (nn.CrossEntropyLoss, torch.nn.CrossEntropyLoss),
    ],
)
def test_constructors_are_those_of_torch(own: type, other: type) -> None:
    assert issubclass(own, other)
    found = {
        n: p.default
        for n, p in inspect.signature(own).parameters.items()
        if n not in ("cast", "z_loss", "softcap")
    }
    assert found == {n: p.default for n, p in inspect.signature(other).parameters.items()}


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyLoss"), reason="torch before 2.13")
def test_the_linear_loss_is_that_of_torch() -> None:
    options = {"bias": True, "weight": torch.rand(9), "label_smoothing": 0.1, "ignore_index": 2}
    own = nn.LinearCrossEntropyLoss(8, 9, **options).double()
    other = torch.nn.LinearCrossEntropyLoss(8, 9, **options).double()
    theirs = set(inspect.signature(torch.nn.LinearCrossEntropyLoss).parameters)
    ours = set(inspect.signature(nn.LinearCrossEntropyLoss).parameters)
    assert ours - theirs == {"z_loss", "softcap"}
    assert theirs - ours == {"out_features", "options"}
    own.load_state_dict(other.state_dict())
    x, target = torch.randn(6, 8, dtype=torch.float64), torch.randint(9, (6,))
    torch.testing.assert_close(own(x, target), other(x, target))


def test_losses_take_their_options() -> None:
    logits, target = torch.randn(6, 9, 2), torch.randint(9, (6, 2))
    for options in ({"reduction": "none"}, {"label_smoothing": 0.2, "ignore_index": 3}):
        got = nn.CrossEntropyLoss(torch.ones(9), **options)(logits, target)
        torch.testing.assert_close(got, torch.nn.CrossEntropyLoss(None, **options)(logits, target))
    capped = nn.CrossEntropyLoss(softcap=0.5, z_loss=0.1)(logits, target)
    lse = (0.5 * (logits / 0.5).tanh()).logsumexp(1)
    plain = torch.nn.functional.cross_entropy(0.5 * (logits / 0.5).tanh(), target)
    torch.testing.assert_close(capped, plain + 0.1 * lse.square().mean())
    head = nn.LinearCrossEntropyLoss(8, 9, softcap=0.5, reduction="sum")
    x = torch.randn(2, 3, 8)
    rows = head.linear(x.flatten(0, 1))
    want = nn.CrossEntropyLoss(softcap=0.5, reduction="sum")(rows, target[:, 0])
    torch.testing.assert_close(head(x, target[:, 0].view(2, 3)), want)


@pytest.mark.parametrize("window", [None, 3])
def test_attention_is_llamas(window: int | None) -> None:
    other = LLAMA.LlamaAttention(CONFIG, layer_idx=0)
    # With the other form Llama computes the shares of keys in float32, whatever the model is.
    precise = copy.deepcopy(other).double()
    precise.config._attn_implementation = "sdpa"
    own = nn.Attention(32, 4, 2, 8, sliding_window=window)
    own.load_state_dict(other.state_dict())
    x = torch.randn(2, 7, 32)
    positions = torch.arange(7)[None] + torch.tensor([[0], [5]])
    key, query = torch.arange(7), torch.arange(7)[:, None]
    seen = key <= query
    if window is not None:
        seen &= key > query - window

    def llamas(layer: Any, x: Tensor) -> Tensor:
        tables = LLAMA.LlamaRotaryEmbedding(CONFIG)(x, positions)
        mask = torch.where(seen, 0.0, -torch.inf).to(x.dtype)[None, None]
        out: Tensor = layer(x, position_embeddings=tables, attention_mask=mask)[0]
        return out

    others = llamas(other, x), llamas(precise, x.double())
    assert_program_as_good_as_eager(own(x, positions), *others)
    own.is_causal = False
    assert_program_as_good_as_eager(own(x, positions, seen), *others)


def test_rotary_angles_stay_in_float32() -> None:
    own, positions = nn.RotaryEmbedding(8).bfloat16(), torch.tensor([100_000])
    assert own.inv_freq.dtype == torch.float32 and not own.state_dict()
    cos, sin = own.tables(positions, torch.float64)
    angles = 100_000 * own.inv_freq
    assert_as_good_as_eager(cos[0, :4].float(), angles.cos(), angles.double().cos())
    assert_as_good_as_eager(sin[0, 4:].float(), angles.sin(), angles.double().sin())
    half = nn.RotaryEmbedding(8, interleaved=True)
    q = torch.randn(1, 2, 5, 8)
    turned, _ = half(q, q)
    straight = torch.cat((q[..., ::2], q[..., 1::2]), -1)
    want, _ = nn.RotaryEmbedding(8)(straight, straight)
    torch.testing.assert_close(torch.cat((turned[..., ::2], turned[..., 1::2]), -1), want)


def test_without_rotation_and_with_a_shared_one() -> None:
    shared = nn.RotaryEmbedding(8, base=500.0)
    x = torch.randn(1, 3, 32)
    layers = [nn.Attention(32, 4, rotary=rotary) for rotary in (shared, False, None)]
    assert layers[0].rotary is shared and layers[1].rotary is None
    for layer in layers:
        layer.load_state_dict(layers[0].state_dict())
    results = [layer(x) for layer in layers]
    assert torch.equal(results[0][:, 0], results[1][:, 0])
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_a_linear_layer_of_16_bits_takes_32() -> None:
    layer, x = nn.Linear(8, 4, dtype=torch.bfloat16), torch.randn(3, 8)
    want = torch.nn.functional.linear(x, layer.weight.float(), layer.bias.float())
    torch.testing.assert_close(layer(x), want)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.RMSNorm(8, cast="x"), "RMSNorm: cast must be .*got 'x'"),
        (lambda: nn.Attention(32, 4, 3), "num_attention_heads must be a multiple .* 3, got 4"),
        (lambda: nn.RotaryEmbedding(7), "RotaryEmbedding: dim must be even, got 7"),
        (
            lambda: nn.LinearCrossEntropyLoss(4, 5, weight=torch.ones(4)),
            r"weight must have shape \[5\] \(num_classes\), got \[4\]",
        ),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_compiled_exported_and_printed() -> None:
    layers = torch.nn.Sequential(
        nn.RMSNorm(32, cast="llama"), nn.Attention(32, 4, 2), nn.LayerNorm(32), nn.SwiGLU(32, 48)
    ).eval()
    x = torch.randn(2, 5, 32)
    torch.testing.assert_close(torch.compile(layers, backend="eager", fullgraph=True)(x), layers(x))
    program = torch.export.export(layers, (x,))
    torch.testing.assert_close(program.module()(x), layers(x))
    text = str(layers)
    assert "cast=llama" in text and "RotaryEmbedding(8, base=10000.0" in text
