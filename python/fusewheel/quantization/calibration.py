"""Measures how large the inputs of a model's linear layers are, on batches of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def calibrate(
    model: torch.nn.Module,
    run: Callable[[torch.nn.Module], Any],
    filter: Callable[[str, torch.nn.Module], bool] | None = None,
) -> dict[str, Tensor]:
    """The mean square of every in feature of every linear layer, while batches run.

    Source: `mean(x ** 2)`, the error weight of GGUF's importance matrix.

    Args:
        model: the model. It is not changed; call `model.eval()` before if that is needed.
        run: a function that is called once with `model`, without gradients, and runs the batches.
            Its errors are passed on.
        filter: `filter(name, module)` says whether to measure a layer; default None, which means
            all layers.

    Returns:
        For each layer, by its name, a float32 tensor `[K]` on the layer's device. Pass the result
        to `quantize_` as `calibration`, or one tensor to `quantize_int4` as `importance`. Layers
        without any input are left out.
    """
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def watch(name: str) -> Callable[..., None]:
        def before(
            module: torch.nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor]
        ) -> None:
            x = arguments[0] if arguments else keywords["input"]
            rows = x.detach().reshape(-1, x.shape[-1]).float()
            squares = rows.square().sum(0, dtype=torch.float64)
            sums[name] = sums[name] + squares if name in sums else squares
            counts[name] = counts.get(name, 0) + rows.shape[0]

        return before

    hooks = [
        module.register_forward_pre_hook(watch(name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and (filter is None or filter(name, module))
    ]
    try:
        with torch.no_grad():
            run(model)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: (sums[name] / counts[name]).float() for name in sums if counts[name]}
