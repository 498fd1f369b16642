"""Activation checkpointing in eager mode, which recomputes what backward needs."""

from functools import partial

import fusewheel
import pytest
import torch
from fusewheel import ops
from fusewheel.doctor.conformance import cases
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

WRITING = [operator for operator in ops.operators() if operator.mutates is not None]


def block(x, weight):
    total, y = fusewheel.add_rms_norm(x, x * 2, weight)[::-1]
    return fusewheel.silu_mul(fusewheel.layer_norm(y, weight.shape, weight), total)


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


@pytest.mark.parametrize("writing", WRITING, ids=[operator.name for operator in WRITING])
def test_a_policy_must_not_save_what_writes(writing):
    """What it returned is nothing; not run again, it would leave its argument as it was."""

    def policy(ctx, op, *args, **kwargs):
        save = op is writing.overload
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    case = cases(writing)[0]
    # With a gradient for the angles of a rotation in place the reference runs.
    first, *rest = case.tensors
    outputs = checkpoint(
        lambda *tensors: case.function(*tensors)[0].square(),
        first.requires_grad_(),
        *rest,
        use_reentrant=False,
        context_fn=contexts,
    )
    with pytest.raises(RuntimeError, match=f"{writing.name}: the policy .* must not save"):
        outputs.sum().backward()
