"""Runs checks in a group of processes that talk by gloo, and brings home what failed."""

from __future__ import annotations

import importlib.util
import multiprocessing
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

LIMIT = 600
"""Seconds after which a group is given up: a process waits for one that failed elsewhere."""

Check = tuple[str, Callable[[], None]]


def failures(file: str, size: int) -> dict[str, str]:
    """Every check that `checks(size)` in `file` yields, and its traceback, empty if it passed.

    All processes make the same checks in the same order. A check that fails in one of them ends the
    group, because the others may wait for it: the checks after it are missing.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = [context.SimpleQueue() for _ in range(size)]
        arguments = (file, size, str(Path(folder) / "rendezvous"))
        processes = [
            context.Process(target=_process, args=(rank, *arguments, results[rank]), daemon=True)
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LIMIT)
        found: dict[str, str] = {}
        for rank, (process, queue) in enumerate(zip(processes, results, strict=True)):
            if process.is_alive():
                process.kill()
            while not queue.empty():
                name, text = queue.get()
                found[name] = found.get(name, "") + (f"process {rank}: {text}" if text else "")
    return found


def _process(rank: int, file: str, size: int, rendezvous: str, results) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch.*")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"file://{rendezvous}")
    for name, check in _checks(file, size):
        try:
            check()
        except BaseException:
            results.put((name, traceback.format_exc()))
            return
        results.put((name, ""))
    dist.destroy_process_group()


def _checks(file: str, size: int) -> Iterator[Check]:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.checks(size)
