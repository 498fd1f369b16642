"""Low-rank adapters over frozen weights, as peft puts them into a model."""

from __future__ import annotations

import fusewheel
import torch
from oracle import assert_as_good_as_call
from small_model import COUNTS, LOSS, SmallModel, gradients_of, small_model, tokens
from torch import Tensor, nn
from torch._dynamo.utils import counters

assert fusewheel


class LoRA(nn.Module):
    """A frozen linear layer plus ``scale * b(a(x))``."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base, self.scale, self.enabled, self.merged = base, 2.0, True, False
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., features]`."""
        y: Tensor = self.base(x)
        if not self.enabled or self.merged:
            return y
        # In the adapter's own dtype, which may be wider.
        added: Tensor = self.b(self.a(x.to(self.a.weight.dtype))) * self.scale
        return (y + added).to(y.dtype)

    def merge(self) -> None:
        """Add the adapter to the weight."""
        self.merged = True
        with torch.no_grad():
            self.base.weight += self.scale * (self.b.weight @ self.a.weight).to(self.base.weight)


def _adapted(dtype: torch.dtype = torch.float32) -> SmallModel:
    model = small_model().to(dtype).requires_grad_(False)
    for layer in model.layers:
        for name in ("gate", "down"):
            setattr(layer, name, LoRA(getattr(layer, name), 3))
    return model


def _adapters(model: SmallModel) -> list[LoRA]:
    return [module for module in model.modules() if isinstance(module, LoRA)]


def _compiled(model: SmallModel) -> SmallModel:
    options = {"inner": "aot_eager"}
    call: SmallModel = torch.compile(model, backend="fusewheel", options=options)  # type: ignore[assignment]
    return call


def test_only_adapters_get_gradients() -> None:
    model, ids = _adapted(), tokens()
    counters.clear()
    got = gradients_of(model, _compiled(model), ids, ids)
    assert counters["fusewheel"] == COUNTS | LOSS
    trained = [name for name, p in model.named_parameters() if p.grad is not None]
    assert trained and all(".a." in name or ".b." in name for name in trained)
    expected = gradients_of(model, model, ids, ids)
    assert (got - expected).norm() <= 1e-5 * expected.norm()


def test_float32_adapters_of_a_bfloat16_model() -> None:
    model, ids = _adapted(torch.bfloat16), tokens(16, 8)
    got = gradients_of(model, _compiled(model), ids, ids)
    expected = gradients_of(model, model, ids, ids)
    exact = gradients_of(model.double(), model, ids, ids)
    assert got.dtype == expected.dtype == torch.float32
    assert (got - exact).norm() <= 2 * (expected - exact).norm()


def test_switched_off_and_merged() -> None:
    model, ids = _adapted().eval(), tokens()
    call = _compiled(model)
    with torch.no_grad():
        adapted = call(ids)
        for adapter in _adapters(model):
            adapter.enabled = False
        plain = call(ids)
        assert_as_good_as_call(plain, model, ids)
        for adapter in _adapters(model):
            adapter.enabled = True
        torch.testing.assert_close(call(ids), adapted)
        for adapter in _adapters(model):
            adapter.merge()
        merged = call(ids)
        assert_as_good_as_call(merged, model, ids)
    assert (plain - adapted).norm() > 0.01 * plain.norm()
