"""Two processes."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from doctor.defects.declare import Twin, planted, square_backward
from fusewheel.doctor import traps
from fusewheel.doctor.columns import distributed
from torch import Tensor

X = [(torch.linspace(-1, 2, 12).view(3, 4),)]
Rule = Callable[[Any], list[Any]]


def whole(x: Any) -> list[Any]:
    """Every process has all of it."""
    from torch.distributed.tensor import Replicate

    return [([Replicate()], [Replicate()])]


def pieces(x: Any) -> list[Any]:
    """Rows, or columns."""
    from torch.distributed.tensor import Shard

    return [*whole(x), ([Shard(0)], [Shard(0)]), ([Shard(1)], [Shard(1)])]


def ruled(op: Any, rule: Rule) -> Any:
    """With a sharding rule for one dimension of a mesh."""
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(op)(rule)
    return op


@planted("DTensor", trap=traps.NO_SHARDING, samples=X)
def no_sharding_rule(twin: Twin) -> Any:
    op = twin.operator(torch.square, backward=square_backward)
    return op if twin.faulty else ruled(op, pieces)


# Two rows, one for each process; one column, which cannot be cut.
@planted("DTensor", trap=traps.WRONG_SHARDING, samples=[(torch.tensor([[1.0], [3.0]]),)])
def pieces_of_what_is_whole(twin: Twin) -> Any:
    """The mean of a piece is not that of the whole."""
    op = twin.operator(lambda x: x * x.mean())
    return ruled(op, pieces if twin.faulty else whole)


@planted("DTensor", trap=traps.WRONG_SHARDING, samples=X)
def gradient_of_pieces(twin: Twin) -> Any:
    """The second operator is what the gradient is made of."""
    slope = twin.operator(
        lambda x: 2 * x - x.mean() + x.mean(1, keepdim=True), name=f"{twin.name}_slope"
    )
    ruled(slope, pieces if twin.faulty else whole)
    op = twin.operator(torch.square, backward=lambda ctx, grad: grad * slope(ctx.saved_tensors[0]))
    return ruled(op, pieces)


@planted("DTensor", trap=traps.SHARDING, samples=X)
def sharding_rule_raises(twin: Twin) -> Any:
    def rule(x: Any) -> list[Any]:
        if twin.faulty:
            raise ValueError("x must be a matrix")
        return pieces(x)

    return ruled(twin.operator(torch.square, backward=square_backward), rule)


@planted("DTensor", trap=traps.CRASH, samples=X)
def dies_in_the_second_process(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        if twin.faulty and torch.distributed.is_initialized() and torch.distributed.get_rank():
            os.kill(os.getpid(), signal.SIGKILL)
        return x * x

    return function


def soon() -> AbstractContextManager[Any]:
    """Processes hang after three seconds."""
    return mock.patch.object(distributed, "SECONDS", 3.0)


@planted("DTensor", trap=traps.HANG, samples=X, where=soon)
def waits_in_a_group(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        if twin.faulty and torch.distributed.is_initialized():
            threading.Event().wait()
        return x * x

    return function


@planted("FSDP2", trap=traps.FULLY_SHARDED, samples=X)
def keeps_what_it_packed(twin: Twin) -> Any:
    """Makes something of a weight once for each version."""
    packed: dict[str, Any] = {}

    def function(x: Tensor) -> Tensor:
        known = packed.get("of", lambda: None)() is x and packed["version"] == x._version
        if not (known and twin.faulty):
            packed.update(of=weakref.ref(x), version=x._version, weight=x.detach().clone())
        return x * packed["weight"]

    return function
