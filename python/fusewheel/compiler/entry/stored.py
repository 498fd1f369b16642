"""What captured graphs became in earlier processes, see `fusewheel.compiler.store`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

from fusewheel._torch.dispatcher import modes_off
from fusewheel.compiler.run.codegen import generate
from fusewheel.compiler.store import files
from fusewheel.compiler.store.key import key_of
from fusewheel.compiler.store.names import Unnamed
from fusewheel.compiler.store.record import Record, Unstorable, graph_of, record_of

_log = logging.getLogger("fusewheel.compiler")


class Stored:
    """What one captured graph became: loaded, or kept for the next process.

    Args:
        gm: the graph as it was captured, for inference on a CPU.
        inner: the option of the backend.
        weights: the tensors that its first inputs are in every call.
    """

    def __init__(self, gm: GraphModule, inner: str | None, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._key: str | None = None
        if files.folder() is None:
            return
        kinds = [type(weight).__qualname__ for weight in weights]
        try:
            self._key = key_of(gm, inner, kinds)
        except Unnamed as reason:
            _log.info("the graph is not kept for other processes: %s", reason)
        except Exception:
            # The graph is compiled without a file.
            _log.warning("the graph is not kept for other processes", exc_info=True)

    def load(self) -> tuple[Callable[..., Any], Mapping[str, int]] | None:
        """The graph as a function of its other inputs, and what was replaced in it how often.

        Returns:
            None if no process has kept it, or it cannot be read.
        """
        if self._key is None:
            return None
        # A tensor made in inference mode could not be used in training later.
        with modes_off(), torch.inference_mode(False), torch.no_grad():
            found = files.read(self._key)
            if found is None:
                return None
            try:
                record = Record(found["nodes"], found["tensors"])
                gm, constants = graph_of(record, self._weights)
                function = generate(gm, constants)
                gm.graph = Graph()  # the function reads attributes of the module only
                counts = {name: int(count) for name, count in found["counts"].items()}
            except Exception:
                _log.warning("a graph that was kept cannot be used", exc_info=True)
                return None
        _log.info("the graph was read from a file, and not compiled")
        return function, counts

    def save(self, gm: GraphModule, counts: Mapping[str, int]) -> None:
        """Keep a graph that became a function, and what was replaced in it how often."""
        if self._key is None:
            return
        try:
            record = record_of(gm, len(self._weights))
            with modes_off(), torch.inference_mode(False):
                files.write(self._key, {**record._asdict(), "counts": dict(counts)})
        except (Unnamed, Unstorable) as reason:
            _log.info("the graph is not kept for other processes: %s", reason)
        except Exception:
            _log.warning("the graph is not kept for other processes", exc_info=True)
