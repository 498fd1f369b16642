"""Hooks of modules, and Dynamo's quick looks at whether a module has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fusewheel._torch.find import find

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Hooks of other things than calls without a gradient, and notes about the hooks above.
NOT_IN_FORWARD = frozenset(
    (
        "_backward_hooks",
        "_backward_pre_hooks",
        "_forward_hooks_always_called",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks_with_kwargs",
        "_load_state_dict_post_hooks",
        "_load_state_dict_pre_hooks",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
    )
)

_for_all_modules = find(
    "torch.nn.modules.module._has_any_global_hook", "see whether hooks are called", lambda: True
)
_WATCH = "see that such hooks were added"
_before_calls = find("torch.nn.modules.module._global_forward_pre_hooks", _WATCH, otherwise={})
_after_calls = find("torch.nn.modules.module._global_forward_hooks", _WATCH, otherwise={})

_LOOK = "see quickly that a model has not changed"
# A number that differs after each change of a dictionary. Python alone takes ten times as long.
_version = find("torch._C._dynamo.guards.dict_version", _LOOK, otherwise=None)
_Layouts = find("torch._C._dynamo.guards.TensorGuards", _LOOK, otherwise=None)


def has_hooks(module: Any) -> bool:
    """Whether a module has hooks that its calls run."""
    return any(getattr(module, name, True) for name in HOOKS)


def has_global_hooks() -> bool:
    """Whether there are hooks that run for all modules; True if it cannot be found out."""
    return bool(_for_all_modules())


def global_hooks() -> list[dict[Any, Any]]:
    """Where torch keeps the hooks that run for all modules when they are called."""
    return [_before_calls, _after_calls]


class Snapshot:
    """Dictionaries and the layouts of tensors as they are now.

    Args:
        tables: the dictionaries.
        tensors: the tensors.
    """

    def __init__(self, tables: Sequence[dict[Any, Any]], tensors: Sequence[Tensor]) -> None:
        self._tables = tables
        self._tensors = tensors
        self._layouts: Any = None
        if _version is not None and _Layouts is not None:
            self._versions = list(map(_version, tables))
            # Without the two last arguments it crashes.
            self._layouts = _Layouts(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)

    def is_same(self) -> bool:
        """Whether no dictionary was written to, and every tensor has the same layout.

        Returns:
            False also after a change that was undone, where inference mode has begun or ended
            since, and where this torch has no functions for it.
        """
        return (
            self._layouts is not None
            and list(map(_version, self._tables)) == self._versions
            and self._layouts.check(*self._tensors)
        )
