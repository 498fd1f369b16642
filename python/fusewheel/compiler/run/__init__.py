"""``options={"inner": "none"}``: the rewritten graph as one flat Python function.

`simplify` and `mask_dtypes` remove what need not run, `fold` computes what does not depend on an
input, `checkpoints` lets parts be computed again with the same random numbers, and `codegen` writes
the function.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.run.checkpoints import run_checkpoints
from fusewheel.compiler.run.codegen import generate
from fusewheel.compiler.run.decoding import decode
from fusewheel.compiler.run.folding import fold
from fusewheel.compiler.run.mask_dtypes import convert_masks
from fusewheel.compiler.run.simplify import drop_dead, share, skip_copies

_log = logging.getLogger("fusewheel.compiler")


Lower = Callable[[Context, Iterable[Node]], Any]


def execute(
    gm: GraphModule,
    lower: Lower | None = None,
    weights: Mapping[Node, Tensor] = MappingProxyType({}),
) -> Callable[..., Any]:
    """Turn a graph into a function of its placeholders.

    Args:
        gm: a rewritten graph from Dynamo; it is changed in place.
        lower: puts programs into the graph; it is given the graph, and nodes that are constants.
            Without it, the default, Python calls every operator.
        weights: placeholders that the function does not take, with the tensors that it uses for
            them. Default none.

    Returns:
        the function of all other placeholders. It runs the operators of the graph in the same
        order, and autograd records each of them. Equal values are computed once.
    """
    context = Context(gm.graph)
    steps = {
        "unused": drop_dead(context),
        "repeated": share(context),
        "copies of nothing": skip_copies(context),
        "masks converted once": convert_masks(context),
    }
    constants = fold(context)
    steps["constants"] = len(constants)
    steps["unused"] += drop_dead(context, keep=constants)  # what constants were computed from
    if lower is not None:
        lower(context, constants)
    steps["attentions of one query"] = decode(context)  # those outside of programs
    steps["unused"] += drop_dead(context, keep=constants)
    steps["checkpoints"] = run_checkpoints(gm)
    _log.info("executor: %s", ", ".join(f"{count} {what}" for what, count in steps.items()))
    gm.graph.lint()
    function = generate(gm, {**constants, **weights})
    switches = any(modes.grad is not None for modes in context.modes.values())
    return _restoring_grad_mode(function) if switches else function


def _restoring_grad_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """A graph with `no_grad` in it: an error in there must not leave gradients off."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        before = torch.is_grad_enabled()
        try:
            return function(*args)
        except BaseException:
            torch.set_grad_enabled(before)
            raise

    return call
