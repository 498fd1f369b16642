"""The float64 that logits are judged by."""

from __future__ import annotations

import copy

import torch
from fusewheel.demo.exact import reference_logits
from tiny_gguf import small_llama
from transformers.models.llama import modeling_llama


def test_nothing_is_rounded_to_float32(monkeypatch):
    model = small_llama(layers=2)
    prompt = torch.arange(40)[None]
    found = reference_logits(model, prompt)
    assert found["exact"].dtype == torch.float64
    assert found["exact"].shape == (1, 32, 97)
    # The same model without the casts to float32 in its norms and rotary angles.
    for name in ("LlamaRMSNorm", "LlamaRotaryEmbedding"):
        casts(monkeypatch, getattr(modeling_llama, name))
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(prompt).logits[:, -32:]
    torch.testing.assert_close(found["exact"], expected, rtol=1e-12, atol=1e-13)
    assert 1e-9 < found["eager_error"] < 1e-4


def casts(monkeypatch, module):
    forward = module.forward

    def wide(self, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "float32", torch.float64)
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            return forward(self, *args, **kwargs)

    monkeypatch.setattr(module, "forward", wide)
