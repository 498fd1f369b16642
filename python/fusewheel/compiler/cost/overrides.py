"""Environment variables that stand for what cost rules would find out about the machine."""

from __future__ import annotations

import math
import os


def text(name: str) -> str | None:
    """The value of a variable; None if it is not set or empty."""
    return os.environ.get(name) or None


def flag(name: str) -> bool | None:
    """A variable that is 0 or 1; None if it is not set or empty.

    Raises:
        ValueError: if it has another value.
    """
    value = text(name)
    if value not in (None, "0", "1"):
        raise ValueError(f"{name} must be 0 or 1, got {value!r}")
    return None if value is None else value == "1"


def positive(name: str) -> float | None:
    """A variable that is a positive number; None if it is not set or empty.

    Raises:
        ValueError: if it is not a number, or not a positive and finite one.
    """
    value = text(name)
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return number
