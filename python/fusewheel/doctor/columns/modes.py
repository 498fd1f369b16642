"""Autocast, tensor subclasses, dispatch modes, copies of graphs, profiler and flop counter."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.builtins import tree_map_only
from fusewheel._torch.dispatcher import TorchDispatchMode
from fusewheel.doctor import traps
from fusewheel.doctor.case import REFUSALS, Case, quiet
from fusewheel.doctor.column import Column, Finding, Refused, applies
from fusewheel.doctor.columns.compilers import overload, own
from fusewheel.doctor.columns.memory import same

THEME = "modes"


def autocast(case: Case) -> None:
    """Mixes activations in bfloat16 and parameters in float32, as a model under autocast does."""
    applies(not case.subject.random, "random")
    floats = [i for i in case.floating if case.tensors[i].dtype == torch.float32]
    applies(bool(floats), "no float32 tensor")
    device = case.tensors[floats[0]].device.type
    mixed = [t.bfloat16() if i == floats[0] else t for i, t in enumerate(case.tensors)]
    for tensors in (case.tensors, mixed):
        leaves = [
            t.detach().requires_grad_(t.is_floating_point() and i not in case.written)
            for i, t in enumerate(tensors)
        ]
        try:
            with quiet(), torch.autocast(device, torch.bfloat16):
                outputs = case.function(*leaves)
        except REFUSALS as error:
            if tensors is case.tensors:
                raise
            words = str(error).strip().partition("\n")[0]
            raise Refused(f"mixed dtypes: {words}") from error
        graph = [o for o in outputs if o.requires_grad]
        if not graph:
            continue
        with quiet():
            wanted = [t for t in leaves if t.requires_grad]
            # Autograd casts gradients to the right dtype, so only errors are looked for.
            torch.autograd.grad([o.sum() for o in graph], wanted, allow_unused=True)


class _Wrapped(Tensor):
    """A tensor around a tensor, as DTensor and quantised tensors are."""

    inner: Any

    @staticmethod
    def __new__(cls: type[_Wrapped], inner: Tensor) -> _Wrapped:
        wrapped: _Wrapped = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        wrapped.inner = inner
        return wrapped

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        plain = tree_map_only(_Wrapped, lambda w: w.inner, (args, kwargs or {}))
        return tree_map_only(Tensor, cls, func(*plain[0], **plain[1]))


def _subclass(case: Case) -> None:
    applies(not case.subject.random, "random")
    with quiet(), torch.no_grad():
        outputs = case.function(*(_Wrapped(t) for t in own(case)))
    if not all(isinstance(o, _Wrapped) for o in outputs):
        raise Finding(traps.SUBCLASS, "a result is a plain tensor")
    plain = tuple(o.inner for o in outputs if isinstance(o, _Wrapped))
    same(plain, case.results(), traps.SUBCLASS)


class _Recording(TorchDispatchMode):
    """Notices whether an operator is called."""

    seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen = True
        return func(*args, **(kwargs or {}))


def _mode(case: Case) -> None:
    applies(not case.subject.random, "random")
    applies(TorchDispatchMode is not object, "this torch has no modes with __torch_dispatch__")
    leaves = case.leaves()  # outside of the mode, which would record how they are made
    with _Recording() as mode, quiet():
        got = case.function(*leaves)
    if not mode.seen:
        raise Finding(traps.MODE, "a __torch_dispatch__ mode saw no operator at all")
    same(tuple(o.detach() for o in got), case.results(), traps.MODE)


def _copies(case: Case) -> None:
    """A graph that calls the operator, deep-copied and pickled."""
    applies(not case.subject.random, "random")
    op = overload(case)
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"t{i}") for i in range(len(case.tensors))]
    graph.output(graph.call_function(op, case.given(nodes)))
    module = torch.fx.GraphModule({}, graph)
    again = pickle.loads(pickle.dumps(module))
    for copied in (copy.deepcopy(module), again):
        tensors = own(case)
        with quiet(), torch.no_grad():
            result = copied(*tensors)
        written = (tensors[i] for i in case.written)
        same((*case.fresh(result), *written), case.results(), traps.PICKLE)


def _flops(case: Case) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    applies(not case.subject.random, "random")
    with quiet(), FlopCounterMode(display=False) as counter:
        got = case.function(*case.leaves())
    same(tuple(o.detach() for o in got), case.results(), traps.FLOPS)
    if counter.get_total_flops() < 0:
        raise Finding(traps.FLOPS, f"{counter.get_total_flops()} operations")


def _profiler(case: Case) -> None:
    """The trace must have the operator's name, or, for a function, any event."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        case.results()
    names = {event.name for event in profiler.events()}
    schema = case.subject.schema
    if not names or (schema is not None and schema.name not in names):
        wanted = "at all" if schema is None else schema.name
        raise Finding(traps.PROFILER, f"no event {wanted} among {len(names)}")


COLUMNS = (
    Column(
        "autocast",
        THEME,
        "autocast, with a mixture of dtypes",
        autocast,
        most=1,
        trap=traps.AUTOCAST,
    ),
    Column("subclass", THEME, "wrapper tensor subclasses", _subclass, most=1, trap=traps.SUBCLASS),
    Column(
        "dispatch mode", THEME, "modes with `__torch_dispatch__`", _mode, most=1, trap=traps.MODE
    ),
    Column("copies", THEME, "graphs deep-copied and pickled", _copies, most=1, trap=traps.PICKLE),
    Column("flops", THEME, "FLOP counter", _flops, most=1, trap=traps.FLOPS),
    Column("profiler", THEME, "its name in a trace", _profiler, most=1),
)
