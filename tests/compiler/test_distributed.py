"""DDP and FSDP2 over two processes: the gradients are those of one process on the whole batch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import torch
import torch.distributed as dist
from nightly import NIGHTLY
from small_model import COUNTS, LOSS, gradients_of, small_model, tokens
from torch import Tensor
from torch._dynamo.utils import counters

assert fusewheel
LAYERS, PROCESSES = 2, 2
BUCKET = 4000  # bytes, about as many as a layer has
Steps = dict[str, tuple[Tensor, dict[str, int]]]


def _data_parallel(model: Any, ids: Tensor) -> Tensor:
    """Dynamo cuts the graph where a bucket of gradients is full, here behind each layer."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = BUCKET
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=BUCKET / 2**20)
    return gradients_of(model, torch.compile(parallel, **OPTIONS), ids, ids)


def _sharded(model: Any, ids: Tensor) -> Tensor:
    """Each layer a graph of its own, as torchtitan does it."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        layer.compile(**OPTIONS)
        fully_shard(layer)
    fully_shard(model)
    model(ids, ids).backward()
    return torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])


OPTIONS: dict[str, Any] = {"backend": "fusewheel", "options": {"inner": "aot_eager"}}
WAYS = {"DDP": _data_parallel, "FSDP2": _sharded}


def work(rank: int, folder: str) -> None:
    """One of the processes: every way on its part of the batch."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=PROCESSES)
    found: Steps = {}
    for name, way in WAYS.items():
        torch.compiler.reset()
        counters.clear()
        gradients = way(small_model(layers=LAYERS), _batch()[rank])
        counts = counters["fusewheel"] | {"graphs": counters["aot_autograd"]["total"]}
        found[name] = gradients, dict(counts)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def both(_: int, folder: str) -> None:
    """The processes as copies of this one, which imports once what takes seconds."""
    method = "fork" if sys.platform == "linux" else "spawn"
    torch.multiprocessing.start_processes(work, (folder,), PROCESSES, start_method=method)


def _batch() -> Tensor:
    return tokens(batch=2 * PROCESSES).view(PROCESSES, 2, -1)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[Steps]:
    """What each process found."""
    if not dist.is_available():
        pytest.skip("torch was built without torch.distributed")
    folder = tmp_path_factory.mktemp("processes")
    # Under the name by which the processes find it: the folder `tests` is on their path.
    named = importlib.import_module(f"compiler.{Path(__file__).stem}").both
    # Not a copy of this one: autograd has run here.
    torch.multiprocessing.spawn(named, (str(folder),))
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(PROCESSES)]


@NIGHTLY
@pytest.mark.parametrize("way", WAYS)
def test_gradients(processes: list[Steps], way: str) -> None:
    model, ids = small_model(layers=LAYERS), _batch().flatten(0, 1)
    expected = gradients_of(model, model, ids, ids)
    for gradients, _ in (steps[way] for steps in processes):
        assert (gradients - expected).norm() <= 1e-5 * expected.norm()


# Layers that are compiled alone share a graph; the head, which is not, keeps its loss.
EXPECTED = {
    "DDP": {name: LAYERS * count for name, count in COUNTS.items()} | LOSS | {"graphs": 3},
    "FSDP2": COUNTS | {"graphs": 1},
}


@NIGHTLY
@pytest.mark.parametrize("way", WAYS)
def test_counts(processes: list[Steps], way: str) -> None:
    for _, counts in (steps[way] for steps in processes):
        assert counts == EXPECTED[way]
