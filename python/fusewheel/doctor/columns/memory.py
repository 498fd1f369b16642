"""What autograd saves between forward and backward: hooks, checkpoints, changes in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from fusewheel._torch.overloads import OpOverload
from fusewheel.doctor import traps
from fusewheel.doctor.case import Case, Tensors, quiet
from fusewheel.doctor.column import Column, Finding, applies, differentiable
from fusewheel.doctor.traps import Trap

THEME = "memory"
# What an input is multiplied by after forward.
FACTOR = -3.0


def total(outputs: Tensors) -> Tensor:
    """A loss that gives each output another gradient."""
    return torch.stack([(o * o).sum().double() for o in outputs if o.requires_grad]).sum()


def gradients(case: Case, function: Callable[..., Any] | None = None) -> Tensors:
    """The gradients of the sum of squares of all outputs, for every floating tensor."""
    leaves = case.leaves()
    wanted = [leaves[i] for i in case.floating]
    with quiet():
        # Not autograd.grad, which reentrant checkpointing refuses.
        total((function or case.function)(*leaves)).backward()
    return tuple(torch.zeros_like(w) if w.grad is None else w.grad for w in wanted)


def same(got: Tensors, want: Tensors, trap: Trap) -> None:
    """Raises a finding with this trap if the gradients differ."""
    try:
        torch.testing.assert_close(got, want, equal_nan=True)
    except AssertionError as error:
        raise Finding(trap, str(error)) from error


def has_graph(case: Case) -> None:
    """Ends a check that needs a backward pass if the case has none."""
    differentiable(case)
    with quiet():
        outputs = case.function(*case.leaves())
    applies(any(o.requires_grad for o in outputs), "records no gradient")
    applies(any(bool(g.any()) for g in gradients(case)), "backward gives no gradient")


def _hooks(case: Case) -> None:
    has_graph(case)
    want = gradients(case)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        got = gradients(case)
    same(got, want, traps.CONTEXT_STATE)


def _changed_input(case: Case) -> None:
    """After an input was changed, the gradient must be right, or backward must raise an error."""
    has_graph(case)
    applies(not case.views, "gives a view")
    want = gradients(case)
    for index in case.floating:

        def function(*tensors: Tensor, index: int = index) -> Tensors:
            own = list(tensors)
            own[index] = own[index].clone()
            outputs = case.function(*own)
            with torch.no_grad():
                own[index].mul_(FACTOR)
            return outputs

        try:
            got = gradients(case, function)
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                continue
            raise
        same(got, want, traps.CONTEXT_STATE)


def _checkpoint(case: Case) -> None:
    has_graph(case)
    want = gradients(case)
    for reentrant in (False, True):
        got = gradients(
            case, lambda *t, r=reentrant: checkpoint(case.function, *t, use_reentrant=r)
        )
        same(got, want, traps.CHECKPOINT)


def _selective(case: Case) -> None:
    """A checkpoint policy that names the operator must decide whether it runs once or twice."""
    applies(isinstance(case.subject.call, OpOverload), "not a dispatcher operator")
    has_graph(case)
    want = gradients(case, _then_square(case))
    again, seen = _under_policy(case, CheckpointPolicy.MUST_RECOMPUTE)
    same(again, want, traps.CHECKPOINT)
    applies(case.subject.call in seen, "decomposes into others before a policy sees it")
    # What the operator writes is not saved, so it is right to refuse that.
    refusals = (RuntimeError,) if case.written else ()
    try:
        saved, _ = _under_policy(case, CheckpointPolicy.MUST_SAVE)
    except refusals:
        return
    same(saved, want, traps.LOST_WRITE if case.written else traps.CHECKPOINT)


def _under_policy(case: Case, policy: CheckpointPolicy) -> tuple[Tensors, set[Any]]:
    """The gradients through a checkpoint that recomputes everything else, and the operators that
    the policy was asked about.
    """
    seen = set()

    def choose(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen.add(op)
        return policy if op is case.subject.call else CheckpointPolicy.MUST_RECOMPUTE

    function, contexts = _then_square(case), partial(create_selective_checkpoint_contexts, choose)
    got = gradients(
        case, lambda *t: checkpoint(function, *t, use_reentrant=False, context_fn=contexts)
    )
    return got, seen


def _then_square(case: Case) -> Callable[..., Tensors]:
    # An operation after it that needs its result in backward, so that it is computed again.
    return lambda *t: tuple(o * o if o.is_floating_point() else o for o in case.function(*t))


def _partial(case: Case) -> None:
    """Each output alone, with no gradient for the others."""
    has_graph(case)
    leaves = case.leaves()
    wanted = [leaves[i] for i in case.floating]
    with quiet():
        outputs = [o for o in case.function(*leaves) if o.requires_grad]
        applies(len(outputs) > 1, "one output")
        parts = []
        for output in outputs:
            try:
                found = torch.autograd.grad(
                    (output * output).sum(), wanted, allow_unused=True, retain_graph=True
                )
            except (TypeError, AttributeError) as error:
                raise Finding(traps.UNDEFINED, str(error)) from error
            parts.append(
                [
                    torch.zeros_like(w) if g is None else g
                    for w, g in zip(wanted, found, strict=True)
                ]
            )
    sums = tuple(sum(p[1:], p[0]) for p in map(list, zip(*parts, strict=True)))
    same(sums, gradients(case), traps.UNDEFINED)


COLUMNS = (
    Column(
        "saved hooks", THEME, "hooks on saved tensors", _hooks, most=1, trap=traps.CONTEXT_STATE
    ),
    Column("changed input", THEME, "a change of a saved input is noticed", _changed_input),
    Column("unused output", THEME, "a gradient for one output only", _partial, most=1),
    Column(
        "checkpoint", THEME, "activation checkpointing", _checkpoint, most=1, trap=traps.CHECKPOINT
    ),
    Column(
        "selective",
        THEME,
        "checkpoint policies that name it",
        _selective,
        most=1,
        trap=traps.CHECKPOINT,
    ),
)
