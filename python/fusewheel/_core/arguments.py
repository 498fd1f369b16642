"""Checks of arguments that several public functions have."""

from __future__ import annotations

import torch


def require_module(function: str, model: object) -> None:
    """Raises an error unless the argument `model` of a function is a module.

    Raises:
        TypeError: names the function and what was given.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{function}: model must be a torch.nn.Module, got {type(model).__name__}")
