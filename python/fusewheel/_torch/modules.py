"""Hooks of modules."""

from __future__ import annotations

from typing import Any

import torch

from fusewheel._torch.find import find

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_for_all_modules = find(
    "torch.nn.modules.module._has_any_global_hook", "see whether hooks are called", lambda: True
)


def has_hooks(module: Any) -> bool:
    """Whether a module has hooks that its calls run."""
    return any(getattr(module, name, True) for name in HOOKS)


def has_global_hooks() -> bool:
    """Whether there are hooks that run for all modules; True if it cannot be found out."""
    return bool(_for_all_modules())


def global_hooks() -> list[dict[Any, Any]]:
    """Where torch keeps the hooks that run for all modules."""
    home = vars(torch.nn.modules.module)
    return [
        value
        for name, value in home.items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]
