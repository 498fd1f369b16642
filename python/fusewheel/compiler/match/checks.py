"""The checks that every match has to pass, whatever its pattern."""

from __future__ import annotations

from torch.fx import Node

from fusewheel._torch.dispatcher import has_kernel, is_wrapper, key_of_device
from fusewheel.compiler.ir.canonical import view
from fusewheel.compiler.ir.metadata import dtype_of, promoted, requires_grad, same_sizes, tensor_of
from fusewheel.compiler.ir.pattern import Context, Match, Pattern, Refuse, require, users_of


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
    """Check an emitted node against the value that it replaces; strides are checked elsewhere.

    Raises:
        Refuse: if dtype, shape, device or `requires_grad` differ.
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
    # The place of the operator may be in another region: in front of an early user of one result.
    modes = {context.modes[node] for node in (*match.computed, match.place())}
    require(len(modes) == 1, "it spans a change of grad, inference or autocast mode")
    require(next(iter(modes)).functorch == 0, "it runs inside a torch.func transform")


def _check_casts(match: Match) -> None:
    # The dtype of a result follows from the operands. If it differs, autocast changed it.
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
        # The operator saves these for its backward; the operations that it replaces may not.
        kept = {*match.inputs, *match.saved}
        write = context.effects.conflicting(kept, last, None, own)
        require(write is None, f"{write} later writes in place what backward needs")


def _check_devices(pattern: Pattern, match: Match) -> None:
    tensors = [tensor for node in match.inputs if (tensor := tensor_of(node)) is not None]
    require(len(tensors) == len(match.inputs), "an input has no metadata")
    for tensor in tensors:
        require(
            not is_wrapper(tensor),
            f"an input is a tensor subclass ({type(tensor).__name__})",
        )
    devices = {tensor.device for tensor in tensors}
    require(len(devices) == 1, "the inputs are on several devices")
    key = key_of_device(devices.pop().type)
    pattern.overload()  # refuses if the operator is not defined
    # A composite fallback does not count, because the inner compiler is faster than that. PyTorch's
    # own composites (attention) choose kernels themselves.
    keys = (key, "CompositeImplicitAutograd")
    require(
        any(has_kernel(pattern.operator, k) for k in keys),
        f"{pattern.operator} has no kernel for {key}",
    )
