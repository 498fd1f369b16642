"""The one shape of a report: text for people, a dictionary and JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any


class BaseReport(ABC):
    """The base of every report, each of which is a dataclass. `str(report)` is its text."""

    @abstractmethod
    def __str__(self) -> str: ...

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it: dictionaries, lists, strings, numbers, booleans and None."""
        found: dict[str, Any] = plain(self)
        return found

    def to_json(self, indent: int | None = 2) -> str:
        """`to_dict()` as JSON.

        Args:
            indent: the spaces by which each level is indented; default 2. None: all in one line.
        """
        return json.dumps(self.to_dict(), indent=indent)


def plain(value: Any) -> Any:
    """A value as JSON has it: a dataclass becomes a dictionary, a tuple a list, an enum its value.

    Anything else stays as it is.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
