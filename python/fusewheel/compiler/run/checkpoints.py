"""Runs checkpointed parts as `torch.utils.checkpoint` does without a compiler.

Dynamo writes a checkpoint as the operator `tag_activation_checkpoint`, which leaves random numbers
to Inductor: run as it is, it draws new ones when it computes a part again, and dropout in the
backward pass is another than in the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from fusewheel.compiler.ir.metadata import bodies_of
from fusewheel.compiler.run.codegen import generate

_NAME = "tag_activation_checkpoint"


def run_checkpoints(gm: GraphModule) -> int:
    """Let the checkpoints of a graph, and those of its bodies, run as PyTorch's function.

    Returns:
        their number.
    """
    count = 0
    for node in list(gm.graph.nodes):
        inside = bodies_of(node)
        count += sum(map(run_checkpoints, inside))
        if inside and getattr(node.target, "_name", "") == _NAME:
            body, *arguments = node.args
            node.target, node.args = _checkpointed(*inside), tuple(arguments)
            if not body.users:
                gm.graph.erase_node(body)
            count += 1
    if count:
        gm.recompile()
    return count


def _checkpointed(body: GraphModule) -> Callable[..., Any]:
    run = generate(body, {})
    own: dict[str, Any] = {"use_reentrant": False}
    # Where Dynamo puts the argument `context_fn` of the user.
    if contexts := body.meta.get("_checkpoint_context_fn"):
        own["context_fn"] = contexts

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(run, *args, **{**kwargs, **own})

    return checkpointed
