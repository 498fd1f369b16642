"""What every rewrite has to respect, whatever its pattern."""

from __future__ import annotations

import torch
from torch.fx import Node

from .canonical import view
from .metadata import dtype_of, promoted, requires_grad, same_sizes, tensor_of
from .pattern import Context, Match, Pattern, Refuse, require, users_of


def check(context: Context, pattern: Pattern, match: Match) -> None:
    """Check a match before anything is changed.

    Raises:
        Refuse: with the reason why it must not be rewritten.
    """
    _check_uses(context, match)
    _check_modes(context, match)
    _check_casts(match)
    _check_writes(context, match)
    _check_devices(pattern, match)
    reason = pattern.cost(match) if pattern.cost is not None else None
    require(reason is None, str(reason))


def check_replacement(root: Node, result: Node) -> None:
    """Check an emitted node against the value it is going to replace, but for its layout.

    Raises:
        Refuse: if dtype, shape, device or the need of a gradient differ.
    """
    old, new = tensor_of(root), tensor_of(result)
    if old is None or new is None:
        raise Refuse("the result has no metadata")
    for what, before, after in (
        ("dtype", old.dtype, new.dtype),
        ("device", old.device, new.device),
        ("requires_grad", old.requires_grad, new.requires_grad),
    ):
        require(before == after, f"{what} of the result would be {after} instead of {before}")
    require(same_sizes(old.shape, new.shape), "the shape of the result would differ")


def _check_uses(context: Context, match: Match) -> None:
    inside = match.interior | frozenset(match.roots)
    for node in match.interior:
        for user in users_of(node):
            require(user in inside, f"interior value {node.name} is also used by {user.name}")
    require(not inside.intersection(match.inputs), "an input is computed inside the pattern")
    match.place()


def _check_modes(context: Context, match: Match) -> None:
    # An early use of one result, before which the operator goes, may lie inside of another region.
    modes = {context.modes[node] for node in (*match.computed, match.place())}
    require(len(modes) == 1, "it spans a change of grad, inference or autocast mode")
    require(next(iter(modes)).functorch == 0, "it runs inside a torch.func transform")


def _check_casts(match: Match) -> None:
    # The dtype of a result follows from the operands; another one is autocast at work.
    for node in match.computed - match.widened:
        found = view(node)
        if found is not None and found.op != "cast":
            natural, actual = promoted(found.args), dtype_of(node)
            require(
                natural == actual,
                f"autocast runs {found.op} in {actual} on operands of {natural}",
            )


def _check_writes(context: Context, match: Match) -> None:
    first, last = min(match.computed), max(match.roots)
    touched = {*match.inputs, *match.interior, *match.absorbed}
    own = match.interior
    write = context.effects.conflicting(touched, first, last, own)
    require(write is None, f"{write} writes in place what the pattern reads")
    write = context.effects.conflicting(match.roots, first, last, own)
    require(write is None, f"{write} writes in place what the pattern computes")
    if any(map(requires_grad, match.roots)):
        # The operator saves these for backward; the operations it replaces may not.
        kept = {*match.inputs, *match.saved}
        write = context.effects.conflicting(kept, last, None, own)
        require(write is None, f"{write} later writes in place what backward needs")


def _check_devices(pattern: Pattern, match: Match) -> None:
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    tensors = [tensor for node in match.inputs if (tensor := tensor_of(node)) is not None]
    require(len(tensors) == len(match.inputs), "an input has no metadata")
    for tensor in tensors:
        require(
            not is_traceable_wrapper_subclass(tensor),
            f"an input is a tensor subclass ({type(tensor).__name__})",
        )
    devices = {tensor.device for tensor in tensors}
    require(len(devices) == 1, "the inputs are on several devices")
    key = torch._C._dispatch_key_for_device(devices.pop().type)
    pattern.overload()  # refuses where the operator is not defined
    # A composite fallback does not count: the inner compiler does better than that. PyTorch's own
    # composites (attention) choose kernels themselves.
    keys = (key, "CompositeImplicitAutograd")
    require(
        any(torch._C._dispatch_has_kernel_for_dispatch_key(pattern.operator, k) for k in keys),
        f"{pattern.operator} has no kernel for {key}",
    )
