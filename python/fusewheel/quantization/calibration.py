"""Measures how large the inputs of a model's linear layers are, on batches of the user."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from fusewheel._core.progress import progress
from fusewheel.quantization.choice import Filter, OldFilter, chosen


def calibrate(
    model: torch.nn.Module,
    run: Callable[[torch.nn.Module], Any],
    filter_fn: Filter | None = None,
    *,
    filter: OldFilter | None = None,
) -> dict[str, Tensor]:
    """The mean square of every in feature of every linear layer, while batches run.

    Source: `mean(x ** 2)`, the error weight of GGUF's importance matrix.

    Args:
        model: the model. It is not changed; call `model.eval()` before if that is needed.
        run: a function that is called once with `model`, without gradients, and runs the batches.
            Its errors are passed on. A compiled model runs eagerly in it.
        filter_fn: `filter_fn(module, name)` says whether to measure a layer; default None, which
            means all layers.
        filter: deprecated, `filter(name, module)`; default None. Use `filter_fn`.

    Returns:
        For each layer, by its name, a float32 tensor `[K]` on the layer's device. Pass the result
        to `quantize_` as `calibration`, or one tensor to `quantize_int4` as `importance`. Layers
        without any input are left out.

    Raises:
        ValueError: both `filter_fn` and `filter` are given.
    """
    wanted = chosen("calibrate", filter_fn, filter)
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
        if isinstance(module, torch.nn.Linear) and wanted(module, name)
    ]
    # The number of batches is not known.
    batches = _endless()
    hooks.append(model.register_forward_pre_hook(lambda *_: next(batches)))
    try:
        # A compiled model would be compiled once more, for the hooks.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            run(model)
    finally:
        for hook in hooks:
            hook.remove()
        batches.close()
    return {name: (sums[name] / counts[name]).float() for name in sums if counts[name]}


def _endless() -> Generator[None, None, None]:
    """Counts on a terminal how often it is asked."""
    yield from progress(repeat(None), describe="calibrate")
