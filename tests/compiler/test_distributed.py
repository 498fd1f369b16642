"""Two processes: their gradients are those of one that sees the whole batch."""

from __future__ import annotations

from pathlib import Path

import distributed_training
import pytest
import torch
import torch.multiprocessing
from small_model import COUNTS, gradients_of, small_model

if not torch.distributed.is_available():
    pytest.skip("this torch was built without torch.distributed", allow_module_level=True)


def test_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.start_processes(
        distributed_training.work, (str(tmp_path),), distributed_training.WORLD
    )
    model, ids = small_model(layers=distributed_training.LAYERS), distributed_training.batch()
    expected = gradients_of(model, model, ids, ids)
    results = torch.load(tmp_path / "results")
    assert results.keys() == {way.__name__ for way in distributed_training.WAYS}
    for way, (got, counts) in results.items():
        assert (got - expected).norm() <= 1e-5 * expected.norm(), way
        # The cuts of DDP may go through a pattern; compiled layers share one graph.
        found = {name: counts.get(name, 0) for name in COUNTS}
        assert way == "ddp" or found == COUNTS, (way, counts)
        assert sum(found.values()) >= len(COUNTS), (way, counts)
