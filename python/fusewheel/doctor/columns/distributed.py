"""Groups of processes: DTensor, and parameters that are cut into pieces by FSDP2."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusewheel._core.process import Child, ChildError, values
from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, Tensors, quiet
from fusewheel.doctor.column import Column, Elsewhere, Finding, NotApplicable, applies
from fusewheel.doctor.columns.memory import gradients, has_graph, same
from fusewheel.doctor.columns.transforms import module_of
from fusewheel.doctor.traps import diagnosed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

THEME = "distributed"
SIZE = 2
# The time for each operator: without it, a process would wait for one that failed.
SECONDS = 60.0
FACTOR = 0.75
Check = Callable[[Case, "DeviceMesh"], None]
# An exception for the calling process to raise, or None.
Verdict = tuple[type[Exception], tuple[Any, ...]] | None


def in_a_group(check: Check, cases: Sequence[Case]) -> list[Verdict]:
    """The verdict of a check for each case, from the first process of a group that is forked."""
    # Imported here once and not in every process, because it takes seconds.
    importlib.import_module("torch.distributed.tensor")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        place = Path(folder, "rendezvous")
        children = [
            stack.enter_context(Child(_verdicts, check, cases, rank, place, method="fork"))
            for rank in range(SIZE)
        ]
        try:
            verdicts: list[Verdict] = values(children, SECONDS * len(cases))[0]
        except ChildError as error:
            raise Finding(traps.HANG if error.late else traps.CRASH, error.explanation) from None
    return verdicts


def _verdicts(check: Check, cases: Sequence[Case], rank: int, place: Path) -> list[Verdict]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        rank=rank,
        world_size=SIZE,
        init_method=f"file://{place}",
        timeout=timedelta(seconds=SECONDS),
    )
    mesh = init_device_mesh("cpu", (SIZE,))
    verdicts = [_verdict(check, case, mesh) for case in cases]
    # Otherwise the first process may end while others still communicate with it.
    dist.barrier()
    return verdicts


def _verdict(check: Check, case: Case, mesh: DeviceMesh) -> Verdict:
    try:
        with quiet():
            check(case, mesh)
    except NotApplicable as why:
        return NotApplicable, why.args
    except Finding as finding:
        return Finding, (finding.trap, finding.detail)
    except Exception as error:
        text = f"{type(error).__name__}: {str(error).strip()}"
        return Finding, (diagnosed(error, traps.SHARDING), text)
    return None


def _dtensor(case: Case, mesh: DeviceMesh) -> None:
    """Tensors that are whole in all processes; then each tensor cut along each dimension."""
    want = case.results()
    wanted = gradients(case) if _has_graph(case) else ()
    for cut, tensors in _spread(case, mesh):
        spread = case.using(tensors)
        try:
            same(tuple(map(_whole, spread.results())), want, traps.WRONG_SHARDING)
        except RuntimeError:
            # A written tensor may have to stay whole, because a write to a copy would be lost.
            if cut not in case.written:
                raise
            continue
        if wanted:
            same(_gradients(spread, mesh), wanted, traps.WRONG_SHARDING)


def _has_graph(case: Case) -> bool:
    try:
        has_graph(case)
    except NotApplicable:
        return False
    return True


def _spread(case: Case, mesh: DeviceMesh) -> Iterator[tuple[int | None, list[Tensor]]]:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def placed(which: int | None, dim: int) -> list[Tensor]:
        places = [Shard(dim) if i == which else Replicate() for i in range(len(case.tensors))]
        return [
            distribute_tensor(t, mesh, [place], src_data_rank=None)
            for t, place in zip(case.tensors, places, strict=True)
        ]

    yield None, placed(None, 0)
    for i, tensor in enumerate(case.tensors):
        for dim, size in enumerate(tensor.shape):
            if size >= SIZE:
                yield i, placed(i, dim)


def _whole(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _gradients(case: Case, mesh: DeviceMesh) -> Tensors:
    """The gradients of the sum of squares of all outputs, as for ordinary tensors."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    leaves = case.leaves()
    wanted = [leaves[i] for i in case.floating]
    outputs = [o for o in case.function(*leaves) if o.requires_grad]
    seeds = [
        distribute_tensor(2 * _whole(o.detach()), mesh, [Replicate()], src_data_rank=None)
        for o in outputs
    ]
    found = torch.autograd.grad(outputs, wanted, seeds, allow_unused=True)
    return tuple(
        torch.zeros(w.shape, dtype=w.dtype) if g is None else _whole(g)
        for g, w in zip(found, wanted, strict=True)
    )


def _fully_sharded(case: Case, mesh: DeviceMesh) -> None:
    """The operator's tensors are parameters, which are gathered for forward and for backward. Runs
    twice, with other values.
    """
    from torch.distributed.fsdp import fully_shard

    has_graph(case)
    applies(all(case.tensors[i].dim() for i in case.floating), "a tensor without dimensions")
    scaled = (t * FACTOR if i in case.floating else t for i, t in enumerate(case.tensors))
    wanted = [gradients(case), gradients(case.using(list(scaled)))]
    module = module_of(case)
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
    parameters = list(module.parameters())
    for want in wanted:
        module.zero_grad()
        module().backward()
        got = tuple(
            torch.zeros(p.shape, dtype=p.dtype) if p.grad is None else _whole(p.grad)
            for p in parameters
        )
        same(got, want, traps.FULLY_SHARDED)
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(FACTOR)


def _place(check: Check) -> Elsewhere:
    def results(cases: Sequence[Case]) -> list[Verdict]:
        applies(
            torch.distributed.is_available() and torch.distributed.is_gloo_available(),
            "torch without gloo",
        )
        applies(not torch.distributed.is_initialized(), "in a group of processes already")
        for case in cases:
            applies(not case.subject.random, "random")
            applies(all(t.device.type == "cpu" for t in case.tensors), "not on a CPU")
        return in_a_group(check, cases)

    def agrees(case: Case, verdict: Verdict) -> None:
        if verdict is not None:
            kind, arguments = verdict
            raise kind(*arguments)

    return Elsewhere(results, agrees)


DTENSOR, FULLY_SHARDED = _place(_dtensor), _place(_fully_sharded)
COLUMNS = (
    Column(
        "DTensor",
        THEME,
        "tensors that lie in pieces on two processes",
        DTENSOR.check,
        most=1,
        slow=True,
        elsewhere=DTENSOR,
    ),
    Column(
        "FSDP2",
        THEME,
        "its tensors are parameters under fully_shard, on two processes",
        FULLY_SHARDED.check,
        most=1,
        slow=True,
        elsewhere=FULLY_SHARDED,
    ),
)
