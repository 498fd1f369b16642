"""``options={"inner": "none"}``: the rewritten graph as one flat Python function.

Nothing is compiled but that function: `simplify` and `masks` leave out what need not run, `fold`
computes what no input changes, `codegen` writes the rest down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule

from ..pattern import Context
from .codegen import generate
from .fold import fold
from .masks import convert_masks
from .simplify import drop_dead, share, skip_copies

_log = logging.getLogger("fusewheel.compiler")


def execute(gm: GraphModule) -> Callable[..., Any]:
    """Turn a graph into a function of its placeholders.

    Args:
        gm: a graph from Dynamo, rewritten already; it is changed in place.

    Returns:
        the function. It does what the graph does: the same operators, in the same order, recorded
        by autograd each on its own; but no value is computed twice that is computed once.
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
    steps["unused"] += drop_dead(context, keep=constants)
    _log.info("executor: %s", ", ".join(f"{count} {what}" for what, count in steps.items()))
    gm.graph.lint()
    return generate(gm, constants)
