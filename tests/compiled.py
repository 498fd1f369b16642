"""Judges a compiled function by the oracle: outputs and every gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from oracle import assert_as_good_as_eager
from torch import Tensor
from torch.utils._pytree import tree_flatten


def assert_compiled_as_good_as_eager(
    compare: Any,
    function: Callable[..., Any],
    exact: Callable[..., Any],
    inputs: tuple[Any, ...],
    inner: str = "aot_eager",
    *,
    whole: bool = False,
    **settings: Any,
) -> Any:
    """Compares and returns the report; `exact` is the function with every cast to float64.

    The gradients of a `whole` model are judged as one vector: among many tensors, which eager gets
    twice as exactly as usual is a matter of chance.
    """
    compiled, recorder = compare.compile(function, inner, **settings)
    wide = tuple(
        i.detach().double().requires_grad_(i.requires_grad) if isinstance(i, Tensor) else i
        for i in inputs
    )
    runs = [_results(compiled, inputs), _results(function, inputs), _results(exact, wide)]
    if whole:
        runs = [(o, [torch.cat([g.flatten() for g in gradients])]) for o, gradients in runs]
    results = ([*outputs, *gradients] for outputs, gradients in runs)
    for number, triple in enumerate(zip(*results, strict=True)):
        assert_as_good_as_eager(*triple, what=f"result {number}")
    return recorder.report()


_Results = tuple[list[Tensor], list[Tensor]]


def _results(function: Callable[..., Any], inputs: tuple[Any, ...]) -> _Results:
    """Outputs and gradients."""
    own = [
        i.detach().clone().requires_grad_(i.requires_grad) if isinstance(i, Tensor) else i
        for i in inputs
    ]
    outputs = tree_flatten(function(*own))[0]
    differentiable = [o for o in outputs if o.requires_grad]
    generator = torch.Generator().manual_seed(3)
    # The same numbers in every dtype.
    seeds = [torch.randn(o.shape, generator=generator).bfloat16() for o in differentiable]
    if differentiable:
        pairs = zip(seeds, differentiable, strict=True)
        torch.autograd.backward(differentiable, [seed.to(o.dtype) for seed, o in pairs])
    leaves = [i for i in own if isinstance(i, Tensor) and i.requires_grad]
    assert all(leaf.grad is not None for leaf in leaves)
    return [o.detach() for o in outputs], [leaf.grad for leaf in leaves]
