"""The logits of a model in float64, with which those of 4-bit weights are compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# The number of positions at the end of the prompt whose logits are compared.
_POSITIONS = 32


class _Float64(TorchFunctionMode):
    """Computes in float64 what a model casts to float32: norms, rotary angles."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        named = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **named)


def _wide(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


def reference_logits(model: Any, prompt: Tensor) -> dict[str, Any]:
    """The last logits of the prompt in float64, and the largest error of eager float32."""
    count = min(_POSITIONS, prompt.shape[1])
    model.eval()
    with torch.no_grad():
        eager = model(prompt, logits_to_keep=count).logits
        wide = copy.deepcopy(model).double()
        with _Float64():
            exact = wide(prompt, logits_to_keep=count).logits
    return {"exact": exact, "eager_error": (eager.double() - exact).abs().max().item()}
