"""Activation checkpointing in eager mode, which recomputes what backward needs."""

import fusewheel
import torch
from torch.utils.checkpoint import checkpoint


def block(x, weight):
    total, y = fusewheel.add_rms_norm(x, x * 2, weight)[::-1]
    return fusewheel.silu_mul(fusewheel.layer_norm(y, weight), total)


def gradients(function):
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(4, 16, generator=generator), torch.randn(16, generator=generator)]
    for leaf in leaves:
        leaf.requires_grad_()
    function(*leaves).square().sum().backward()
    return [leaf.grad for leaf in leaves]


def test_gradients_are_the_same():
    recomputed = gradients(lambda *leaves: checkpoint(block, *leaves, use_reentrant=False))
    for got, expected in zip(recomputed, gradients(block), strict=True):
        assert torch.equal(got, expected)
