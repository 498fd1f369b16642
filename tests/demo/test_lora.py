"""Low-rank adapters over frozen layers."""

from __future__ import annotations

import pytest
import torch
from fusewheel.demo.lora import Adapted, add_adapters
from fusewheel.quantization import LinearInt4
from torch import nn


@pytest.fixture
def layers():
    torch.manual_seed(0)
    mixed = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32, bias=False))
    mixed[2] = LinearInt4.from_linear(mixed[2])
    return mixed


def test_at_first_nothing_changes(layers):
    x = torch.randn(5, 32)
    expected = layers(x)
    add_adapters(layers)
    assert torch.equal(layers(x), expected)


def test_the_adapters_alone_are_trained(layers):
    trained = add_adapters(layers)
    assert [tuple(parameter.shape) for parameter in trained] == [(8, 32), (64, 8), (8, 64), (32, 8)]
    assert isinstance(layers[2], Adapted)
    layers(torch.randn(5, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in trained)
    assert layers[0].linear.weight.grad is None


def test_they_add_a_product_of_low_rank(layers):
    x = torch.randn(5, 32)
    expected = layers[0](x)
    down, up, *_ = add_adapters(layers)
    with torch.no_grad():
        up.normal_()
    torch.testing.assert_close(layers[0](x), expected + x @ (2 * up @ down).T)
