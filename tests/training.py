"""A training step, compiled, eager and in float64: outputs and all gradients before the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from oracle import assert_as_good_as_eager, to_dtype
from torch import Tensor
from torch.utils._pytree import tree_flatten


def wide(x: Tensor) -> Tensor:
    """`x` in float32, as models upcast their logits; in float64 if it is that already."""
    return x if x.dtype == torch.float64 else x.float()


def run(function: Callable[..., Any], inputs: tuple[Any, ...]) -> dict[str, Tensor | None]:
    """Outputs of a function and the gradients of a random combination of them."""
    leaves = [
        a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a
        for a in inputs
    ]
    outputs = tree_flatten(function(*leaves))[0]
    generator = torch.Generator().manual_seed(3)
    roots = [o for o in outputs if o.requires_grad]
    scales = [torch.randn(o.shape, generator=generator).to(o.dtype) + 1 for o in roots]
    if roots:
        torch.autograd.backward(roots, scales)
    named: dict[str, Tensor | None] = {f"output {i}": o.detach() for i, o in enumerate(outputs)}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            named[f"gradient {i}"] = leaf.grad
    return named


def assert_step(
    compiled: Callable[..., Any], function: Callable[..., Any], *inputs: Any
) -> dict[str, Tensor | None]:
    """`compiled` is as good as `function`; gives its results."""
    got, eager = run(compiled, inputs), run(function, inputs)
    kept = [isinstance(a, Tensor) and a.requires_grad for a in inputs]
    doubled = zip(to_dtype(inputs, torch.float64), kept, strict=True)
    exact = run(function, tuple(a.requires_grad_() if keep else a for a, keep in doubled))
    for name, value in got.items():
        base, truth = eager[name], exact[name]
        assert (value is None) == (base is None), name
        if value is None or base is None or truth is None:
            continue
        if value.is_floating_point():
            assert_as_good_as_eager(value, base, truth, name)
        else:
            assert torch.equal(value, base), name
    return got
