"""How large the inputs of a model's linear layers are, from batches that run through it."""

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
    """Mean square of every input feature of every linear layer while batches run.

    Args:
        model: looked at and left as it was; its mode (`eval`, `train`) is the caller's affair.
        run: called once with `model`, runs the batches; without gradients. What it raises is
            passed on.
        filter: `filter(name, module)` says whether to look at a layer; all if None.

    Returns:
        By the name of the layer a tensor `[K]`, float32, on the layer's device: `calibration` of
        `quantize_`, `importance` of `quantize_int4`. Layers that saw no input are left out.
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
