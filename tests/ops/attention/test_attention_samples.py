"""PyTorch's own samples of scaled_dot_product_attention, and where PyTorch puts a causal mask."""

from __future__ import annotations

from typing import Any

import fusewheel
import torch
import torch.nn.functional as F
from contracts import attention_gradients
from neighbours import assert_call_as_good_as_eager
from ops.attention.inputs import leaves
from torch import Tensor


def as_heads(*tensors: Tensor) -> list[Tensor]:
    """Each with the four dimensions of `fusewheel.attention`."""
    lead = torch.broadcast_shapes(*(t.shape[:-2] for t in tensors))
    heads = lead[-1] if len(lead) > 1 else 1
    return [t.expand(*lead, *t.shape[-2:]).reshape(-1, heads, *t.shape[-2:]) for t in tensors]


def mask_of(q: Tensor, k: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor | None:
    if is_causal:
        return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return attn_mask


def own(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    return fusewheel.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=is_causal)


def theirs(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=is_causal)


def step(function: Any, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    given = leaves(*arguments[:3])
    out = function(*given, *arguments[3:])
    found = torch.autograd.grad(out, given, slope_of(out))
    mask = arguments[3]
    if not is_added(mask):
        return out.detach(), *found
    # By itself: PyTorch computes in float32 where a mask needs a gradient.
    (mask,) = leaves(mask)
    other = function(*arguments[:3], mask, *arguments[4:])
    return out.detach(), *found, *torch.autograd.grad(other, mask, slope_of(other))


def is_added(mask: Tensor | None) -> bool:
    """Whether a mask is added to the scores, so that it has a gradient."""
    return mask is not None and mask.is_floating_point()


def slope_of(out: Tensor) -> Tensor:
    return torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)


def allowed(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool
) -> tuple[Any, ...]:
    """Of gradients of q, k and v what the docstring states, of the others nothing."""
    slope = slope_of(own(q, k, v, attn_mask, is_causal))
    (grad,), given = as_heads(slope), as_heads(q, k, v)
    bias = mask_of(q, k, attn_mask, is_causal)
    bias = None if bias is None else bias.view(1, 1, *bias.shape)
    options = (None, bias, -1, -1, q.shape[-1] ** -0.5, 0.0)
    found = attention_gradients(*given, *options, grad, torch.zeros(grad.shape[:3]))
    of_inputs = (
        found[i].reshape(*slope.shape[:-2], *t.shape[-2:]).sum_to_size(t.shape)
        for i, t in enumerate((q, k, v))
    )
    return 0.0, *of_inputs, *([0.0] if is_added(attn_mask) else [])


def test_pytorchs_own_samples(dtype: torch.dtype):
    # Takes four seconds, which other tests of this process need not wait for.
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = (op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    tried = set()
    for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
        options = {"attn_mask": None, **sample.kwargs}
        if options.pop("dropout_p") > 0:
            continue  # random: test_attention_edges.py looks at the mean
        arguments = (sample.input, *sample.args, *options.values())
        what = f"{[list(t.shape) for t in arguments[:3]]}, {options}"
        assert_call_as_good_as_eager(step, own, theirs, arguments, what, contract=allowed)
        tried.add((sample.input.dim(), sample.args[0].dim(), options["is_causal"]))
    assert len(tried) == 6
