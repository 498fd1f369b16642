"""What each of two processes does in the tests of distributed training."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small_model import SmallModel, small_model, tokens
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

OPTIONS = {"inner": "aot_eager"}
LAYERS, WORLD = 2, 2


def ddp(model: SmallModel) -> tuple[nn.Module, Callable[..., Tensor]]:
    """Buckets so small that Dynamo's optimizer for DDP cuts the graph into several."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1000  # type: ignore[attr-defined]
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.001)
    return parallel, torch.compile(parallel, backend="fusewheel", options=OPTIONS)


def fsdp(model: SmallModel) -> tuple[nn.Module, Callable[..., Tensor]]:
    """Sharded layers in a compiled model."""
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.compile(model, backend="fusewheel", options=OPTIONS)


def fsdp_of_compiled_layers(model: SmallModel) -> tuple[nn.Module, Callable[..., Tensor]]:
    """Compiled layers that are sharded, as large models are trained."""
    for layer in model.layers:
        layer.compile(backend="fusewheel", options=OPTIONS)
        fully_shard(layer)
    fully_shard(model)
    return model, model


WAYS = (ddp, fsdp, fsdp_of_compiled_layers)


def batch(rank: int | None = None) -> Tensor:
    """What one process is given, or all of it."""
    ids = tokens(batch=2 * WORLD)
    return ids if rank is None else ids[2 * rank : 2 * rank + 2]


def work(rank: int, folder: str) -> None:
    """Two steps in each way; the first process writes down the gradients."""
    torch.set_num_threads(1)
    store, timeout = f"file://{folder}/store", timedelta(seconds=300)
    dist.init_process_group("gloo", store, timeout, WORLD, rank)
    results: dict[str, Any] = {}
    for way in WAYS:
        torch._dynamo.reset()
        counters.clear()
        model, call = way(small_model(layers=LAYERS))
        ids = batch(rank)
        for _ in range(2):
            model.zero_grad()
            call(ids, ids).backward()
        gradients = [p.grad for p in model.parameters()]
        whole = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients]
        vector = torch.cat([g.flatten() for g in whole if g is not None])
        results[way.__name__] = vector, dict(counters["fusewheel"])
    if rank == 0:
        torch.save(results, Path(folder) / "results")
    dist.destroy_process_group()
