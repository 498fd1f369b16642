"""Models whose attention is written by hand, and the masks that models build."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from nightly import NIGHTLY
from oracle import assert_as_good_as_call, assert_program_as_good_as_eager

transformers = pytest.importorskip("transformers")
Tensor = torch.Tensor
LAYERS, LENGTH = 2, 12


class NanoBlock(torch.nn.Module):
    """As nanoGPT writes it, where there is no function of PyTorch's: with a buffer as the mask."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.drop = torch.nn.Dropout(0.0)
        self.register_buffer("mask", torch.tril(torch.ones(length, length))[None, None])

    def forward(self, x: Tensor) -> Tensor:
        """Attend causally."""
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (
            part.view(shape).transpose(1, 2) for part in self.qkv(self.norm(x)).split(width, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        y = self.drop(F.softmax(scores, dim=-1)) @ v
        return x + self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Nano(torch.nn.Module):
    """Two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        self.blocks = torch.nn.Sequential(*(NanoBlock(32, 2, 2 * LENGTH) for _ in range(LAYERS)))
        self.head = torch.nn.Linear(32, 64)

    def forward(self, input_ids: Tensor) -> tuple[Tensor]:
        """Logits."""
        return (self.head(self.blocks(self.embed(input_ids))),)


def _hugging_face(name: str, **settings: Any) -> torch.nn.Module:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    dropout = ("attention_probs_dropout_prob", "hidden_dropout_prob", "embd_pdrop", "attn_pdrop")
    settings = sizes | dict.fromkeys((*dropout, "resid_pdrop"), 0.0) | settings
    config = getattr(transformers, f"{name}Config")(attn_implementation="eager", **settings)
    model: torch.nn.Module = getattr(transformers, f"{name}Model")(config)
    return model


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], str]] = {
    "nanoGPT": (Nano, "arbitrary"),
    "GPT2": (lambda: _hugging_face("GPT2"), "causal"),
    "Llama": (lambda: _hugging_face("Llama", num_key_value_heads=1, head_dim=16), "causal"),
    "Mistral": (
        lambda: _hugging_face("Mistral", num_key_value_heads=1, head_dim=16, sliding_window=5),
        "sliding window [-4, 0]",
    ),
    "Bert": (lambda: _hugging_face("Bert"), "none"),
}


def _step(call: Any, model: torch.nn.Module, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    output = call(input_ids=ids)[0]
    loss = output.float().square().mean()
    loss.backward()
    # Of a layer that is not used, eager gives no gradient and AOTAutograd zeros.
    used = [p for name, p in model.named_parameters() if "pooler" not in name]
    gradients = [p.grad.flatten() for p in used if p.grad is not None]
    # One number eager may get exactly by chance: the loss is judged with the rest.
    results = torch.cat((output.detach().flatten(), loss.detach()[None]))
    return {"results": results, "gradients": torch.cat(gradients)}


# A change tries a mask made by hand, and the causal one of transformers.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("nanoGPT", "Llama") else NIGHTLY) for name in MODELS],
)
def test_training_step(compare: Any, name: str) -> None:
    build, kind = MODELS[name]
    model, ids = build(), torch.randint(3, 64, (2, LENGTH))
    exact = copy.deepcopy(model).double()
    call, recorder = compare.compile(model, "aot_eager", fullgraph=True)
    results = _step(call, model, ids), _step(model, model, ids), _step(exact, exact, ids)
    report = recorder.report()
    assert report.count("softmax_attention") == LAYERS, report
    assert [(a.count, a.mask) for a in report.attentions] == [(LAYERS, kind)]
    assert report.graphs == 1
    for what, got in results[0].items():
        assert_program_as_good_as_eager(got, results[1][what], results[2][what], f"{name}: {what}")


def test_mask_in_a_buffer(compare: Any) -> None:
    """What it holds may change: the second time it hides all keys of a query."""
    model, ids = Nano(), torch.randint(3, 64, (2, LENGTH))
    call, recorder = compare.compile(model)
    _step(call, model, ids)
    model.blocks[1].mask[..., 4, :] = 0  # type: ignore[union-attr,operator,index]
    exact = copy.deepcopy(model).double()
    got, eager, truth = (
        _step(*each, ids) for each in ((call, model), (model, model), (exact, exact))
    )
    for what, values in eager.items():
        assert values.isnan().any() and values.isfinite().any()
        assert_program_as_good_as_eager(got[what], values, truth[what], what)
    with torch.no_grad():
        assert_as_good_as_call(call(ids), model, ids)
    assert recorder.report().count("softmax_attention") == 2 * LAYERS, recorder.report()
    assert recorder.graphs == 2


@pytest.mark.parametrize("name", ["Llama", pytest.param("Bert", marks=NIGHTLY)])
def test_padding(compare: Any, name: str) -> None:
    """On the left, where queries see no key, and on the right."""
    model, ids = MODELS[name][0]().eval(), torch.randint(3, 64, (2, LENGTH))
    mask = torch.ones_like(ids)
    mask[0, :4], mask[1, 8:] = 0, 0
    call, recorder = compare.compile(model)
    seen = mask[:, None, None].bool()
    if name == "Llama":
        seen = seen & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    # In float64 a model hides by float64's least number, of which its softmax in float32 makes -inf
    # and a row of it NaN.
    hiding = torch.where(seen, 0.0, torch.finfo(torch.float32).min).double()
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        got, eager, truth = (
            run(input_ids=ids, attention_mask=own)[0]
            for run, own in ((call, mask), (model, mask), (exact, hiding))
        )
    assert_program_as_good_as_eager(got, eager, truth)
    report = recorder.report()
    assert report.count("softmax_attention") == LAYERS, report
    (found,) = report.attentions
    assert found.mask == ("causal + padding" if name == "Llama" else "padding")


def test_padding_in_training_is_kept(compare: Any) -> None:
    """The gradients of queries that see nothing would differ."""
    model, ids = MODELS["Llama"][0](), torch.randint(3, 64, (2, LENGTH))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    call, recorder = compare.compile(model, "eager")
    call(input_ids=ids, attention_mask=mask)
    report = recorder.report()
    assert report.count("softmax_attention") == 0
    assert any("other gradients" in refusal.reason for refusal in report.refusals), report


@NIGHTLY
def test_output_attentions() -> None:
    """The weights are a result."""
    model = MODELS["GPT2"][0]().eval()
    ids = torch.randint(3, 64, (2, LENGTH))
    report = fusewheel.explain(model, input_ids=ids, output_attentions=True)
    assert report.count("softmax_attention") == 0
    assert any("attention weights" in refusal.reason for refusal in report.refusals), report


@pytest.mark.parametrize(
    ("name", "padded", "kind"),
    [
        pytest.param("Llama", False, "causal", marks=NIGHTLY),
        ("Llama", True, "causal + padding"),
        ("Mistral", False, "sliding window [-4, 0]"),
        ("Bert", True, "padding"),
    ],
)
def test_masks_of_sdpa(name: str, padded: bool, kind: str) -> None:
    """The masks Hugging Face builds for PyTorch's attention."""
    model = MODELS[name][0]().eval()
    model.set_attn_implementation("sdpa")  # type: ignore[operator]
    ids = torch.randint(3, 64, (2, LENGTH))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with torch.no_grad():
        inputs = {"input_ids": ids} | ({"attention_mask": mask} if padded else {})
        (found,) = fusewheel.explain(model, **inputs).attentions
    assert (found.mask, found.count) == (kind, LAYERS)
    assert "sdpa_attention.py" in found.source
