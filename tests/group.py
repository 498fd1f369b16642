"""Runs checks in a group of processes that talk by gloo, and brings home what failed."""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

SIZE = 4
LIMIT = 1800
"""Seconds after which a group is given up: a process waits for one that failed elsewhere."""

Check = tuple[str, Callable[[], None]]


def in_turn(checks: Iterable[Check]) -> Iterator[Check]:
    """Of two groups of two processes, which would do the same, each makes every second check."""
    for number, (name, check) in enumerate(checks):
        yield name, partial(_in_group, number % 2, check)


def _in_group(group: int, check: Callable[[], None]) -> None:
    if dist.get_rank() // 2 == group:
        check()


def failures(files: Sequence[str], night: bool = False) -> dict[tuple[str, str], str]:
    """Every check that `checks()` in one of `files` yields, by file and name: its traceback, empty
    if it passed. At `night` also those of `checks_at_night()`, in files that have it.

    All processes make the same checks in the same order. A check that fails in one of them ends the
    group, because the others may wait for it: the checks after it are missing.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Not a copy of this process: it has computed with several threads.
        if sys.platform == "linux":
            first = multiprocessing.get_context("spawn").Process(
                target=_copies, args=(files, night, folder)
            )
            first.start()
            first.join()
        else:
            _run("spawn", files, night, folder)
        found: dict[tuple[str, str], str] = {}
        for rank in range(SIZE):
            log = Path(folder) / str(rank)
            for record in torch.load(log) if log.exists() else ():
                file, name, text = record
                seen = found.get((file, name), "")
                found[file, name] = seen + (f"process {rank}: {text}" if text else "")
    return found


def _copies(files: Sequence[str], night: bool, folder: str) -> None:
    """The group as copies of this process, which imports once what takes seconds."""
    import fusewheel  # noqa: F401
    import torch.distributed.tensor.parallel  # noqa: F401

    _run("fork", files, night, folder)


def _run(method: str, files: Sequence[str], night: bool, folder: str) -> None:
    context = multiprocessing.get_context(method)
    rendezvous = str(Path(folder) / "rendezvous")
    processes = [
        context.Process(
            target=_process,
            args=(rank, files, night, rendezvous, Path(folder) / str(rank)),
            daemon=True,
        )
        for rank in range(SIZE)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT)
        if process.is_alive():
            process.kill()


def _process(rank: int, files: Sequence[str], night: bool, rendezvous: str, log: Path) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch.*")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        rank=rank,
        world_size=SIZE,
        init_method=f"file://{rendezvous}",
        timeout=timedelta(seconds=LIMIT),
    )
    records: list[tuple[str, str, str]] = []
    for file in files:
        for name, check in _checks(file, night):
            try:
                check()
            except BaseException:
                records.append((file, name, traceback.format_exc()))
                torch.save(records, log)
                return
            records.append((file, name, ""))
    torch.save(records, log)
    dist.destroy_process_group()


def _checks(file: str, night: bool) -> Iterator[Check]:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield from module.checks()
    if night and hasattr(module, "checks_at_night"):
        yield from module.checks_at_night()
