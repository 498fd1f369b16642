"""Runs a function and its gradients: compiled, eager and in float64, the oracle as the judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from oracle import (
    assert_program_as_good_as_eager,
    assert_vector_as_good_as_eager,
    to_dtype,
)
from torch import Tensor
from torch.utils._pytree import tree_flatten


def wide(x: Tensor) -> Tensor:
    """`x` in float32, as models upcast their logits; in float64 if it is that already."""
    return x if x.dtype == torch.float64 else x.float()


def run(function: Callable[..., Any], inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Outputs, the gradients of a random combination of them, and the inputs after the call."""
    own = [
        i.detach().clone().requires_grad_(i.requires_grad) if isinstance(i, Tensor) else i
        for i in inputs
    ]
    torch.manual_seed(1)
    outputs = tree_flatten(function(*own))[0]
    roots = [o for o in outputs if isinstance(o, Tensor) and o.requires_grad]
    generator = torch.Generator().manual_seed(3)
    # The same in every dtype.
    scales = [torch.randn(o.shape, generator=generator).bfloat16().to(o) for o in roots]
    if roots:
        torch.autograd.backward(roots, scales)
    named = {f"output {i}": output for i, output in enumerate(outputs)}
    named |= {f"input {i}": own for i, own in enumerate(own)}  # it may have been written to
    # A leaf may lie in the memory of another.
    named = {n: r.clone() if isinstance(r, Tensor) and r.is_leaf else r for n, r in named.items()}
    trained = [i for i, leaf in enumerate(own) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return named | {f"gradient {i}": own[i].grad for i in trained}


def assert_step(
    compiled: Callable[..., Any],
    function: Callable[..., Any],
    *inputs: Any,
    exact: Callable[..., Any] | None = None,
    whole: bool = False,
) -> dict[str, Any]:
    """`compiled` is as good as `function`; gives its results.

    `exact` is the function with every cast to float64, where it has casts of its own. The gradients
    of a `whole` model are judged as one vector, by its length: which of many tensors, or of the few
    elements of one, eager gets twice as exactly as usual is a matter of chance.
    """
    kept = [isinstance(a, Tensor) and a.requires_grad for a in inputs]
    doubled = zip(to_dtype(inputs, torch.float64), kept, strict=True)
    wide_inputs = tuple(a.requires_grad_() if keep else a for a, keep in doubled)
    runs = run(compiled, inputs), run(function, inputs), run(exact or function, wide_inputs)
    got, eager, truth = map(_as_vector, runs) if whole else runs
    assert got.keys() == eager.keys() == truth.keys()
    for name, value in got.items():
        base = eager[name]
        if not isinstance(value, Tensor):
            assert value == base, name
            continue
        assert value.requires_grad == base.requires_grad, name
        if whole and name == "gradients":
            assert value.dtype == base.dtype, name
            assert_vector_as_good_as_eager(value.double(), base.double(), truth[name], name)
        elif value.is_floating_point():
            assert_program_as_good_as_eager(value, base, truth[name], name)
        else:
            assert torch.equal(value, base), name
    return runs[0]


def _as_vector(results: dict[str, Any]) -> dict[str, Any]:
    gradients = {name: value for name, value in results.items() if name.startswith("gradient")}
    assert all(gradient is not None for gradient in gradients.values())
    others = {name: value for name, value in results.items() if name not in gradients}
    return others | {"gradients": torch.cat([g.flatten() for g in gradients.values()])}
