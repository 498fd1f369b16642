"""Pieces of keys and values that go round a group of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fusewheel.dispatch.promise import fail

SEQUENCE = 2
"""The dimension that is cut into pieces."""


@dataclass(frozen=True)
class Transfer:
    """Pieces on their way from the process before."""

    pieces: Sequence[Tensor]
    # What is sent must stay in memory until then.
    sent: Sequence[Tensor] = ()
    works: Sequence[dist.Work] = ()

    def arrived(self) -> Sequence[Tensor]:
        """Waits for them."""
        for work in self.works:
            work.wait()
        return self.pieces


class Ring:
    """A group of processes, each of which gives to the next one what it has from the one before.

    The constructor exchanges the sizes of all pieces, so all processes must call it.

    Args:
        op: the function that is called, for error messages.
        group: the processes; None means all.
        q: this process's piece of the queries.
        k: its piece of the keys.
        v: its piece of the values.

    Raises:
        RuntimeError: the pieces of two processes do not fit together; in all processes.
    """

    def __init__(
        self, op: str, group: dist.ProcessGroup | None, q: Tensor, k: Tensor, v: Tensor
    ) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._group = group
        sizes = (*q.shape[:2], *k.shape[1::2], v.shape[3])
        own = torch.tensor([q.shape[SEQUENCE], k.shape[SEQUENCE], *sizes], device=q.device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(every, own, group)
        self._queries, self._lengths, *columns = torch.stack(every, 1).tolist()
        for process, others in enumerate(zip(*columns, strict=True)):
            if others != (first := tuple(column[0] for column in columns)):
                fail(
                    op,
                    "the pieces of all processes must have the same batch, heads and head sizes "
                    f"(B, Hq, Hkv, D, Dv), got {list(first)} in process 0 of the group and "
                    f"{list(others)} in process {process}",
                )

    def source(self, step: int) -> int:
        """The process whose piece of keys and values is here in a step."""
        return (self.rank - step) % self.size

    def position(self, step: int) -> int:
        """Where this process's first query stands among the keys of the piece of a step.

        The last query of the whole sequence stands at the last key.
        """
        before = sum(self._queries[: self.rank]) - sum(self._lengths[: self.source(step)])
        return before + sum(self._lengths) - sum(self._queries)

    def pieces(self, *tensors: Tensor) -> Iterator[tuple[int, Sequence[Tensor]]]:
        """Each step, with the pieces that are here, while those of the next are on their way."""
        here: Sequence[Tensor] = tensors
        for step in range(self.size):
            arriving = self.pass_on(step, here) if step + 1 < self.size else None
            yield step, here
            if arriving is not None:
                here = arriving.arrived()

    def pass_on(self, step: int, tensors: Sequence[Tensor]) -> Transfer:
        """Starts to give the pieces of a step to the next process, for those of the next step.

        After the last step each process gets its own piece.
        """
        given = [t.contiguous() for t in tensors]
        if self.size == 1:
            return Transfer(given)
        length = self._lengths[self.source(step + 1)]
        taken = [
            t.new_empty((*t.shape[:SEQUENCE], length, *t.shape[SEQUENCE + 1 :])) for t in given
        ]
        after, before = ((self.rank + i) % self.size for i in (1, -1))
        transfers = [
            dist.P2POp(send, tensor, group=self._group, group_peer=peer)
            for own, new in zip(given, taken, strict=True)
            for send, tensor, peer in ((dist.isend, own, after), (dist.irecv, new, before))
        ]
        return Transfer(taken, given, dist.batch_isend_irecv(transfers))
