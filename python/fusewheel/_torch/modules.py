"""Hooks of modules."""

from __future__ import annotations

from typing import Any

from fusewheel._torch.find import find

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_for_all_modules = find(
    "torch.nn.modules.module._has_any_global_hook", "see whether hooks are called", lambda: True
)
_WATCH = "see that such hooks were added"
_before_calls = find("torch.nn.modules.module._global_forward_pre_hooks", _WATCH, otherwise={})
_after_calls = find("torch.nn.modules.module._global_forward_hooks", _WATCH, otherwise={})


def has_hooks(module: Any) -> bool:
    """Whether a module has hooks that its calls run."""
    return any(getattr(module, name, True) for name in HOOKS)


def has_global_hooks() -> bool:
    """Whether there are hooks that run for all modules; True if it cannot be found out."""
    return bool(_for_all_modules())


def global_hooks() -> list[dict[Any, Any]]:
    """Where torch keeps the hooks that run for all modules when they are called."""
    return [_before_calls, _after_calls]
