"""What the metadata of a GGUF file says about its model."""

from __future__ import annotations

import math
from typing import NoReturn

from fusewheel.quantization.gguf.file import GgufFile

# Of any size of a model.
_LARGEST = 2**31 - 1


class Values:
    """The numbers whose names begin with the architecture of the file.

    Args:
        file: the file; it must say its architecture.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.architecture = str(file.metadata["general.architecture"])

    def name(self, key: str) -> str:
        """The name of a key in the file."""
        return f"{self.architecture}.{key}"

    def number(self, key: str) -> int | float | None:
        """A number; None if the file does not have it.

        Raises:
            ValueError: the file has something else there.
        """
        found = self.file.metadata.get(self.name(key))
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            self.refuse(f"has no number for {self.name(key)}")
        if not math.isfinite(found) or found < 0:
            self.refuse(f"has {found} for {self.name(key)}")
        return found

    def positive(self, key: str) -> int | float:
        """A number above 0.

        Raises:
            ValueError: the file does not have it.
        """
        found = self.number(key)
        if not found:
            self.refuse(f"must say {self.name(key)}")
        return found

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0; `default` if the file does not have it.

        Raises:
            ValueError: the file has another number, or none and there is no default.
        """
        if default is not None and self.number(key) is None:
            return default
        found = self.positive(key)
        if not isinstance(found, int) or found > _LARGEST:
            self.refuse(f"must have a whole number up to {_LARGEST} for {self.name(key)}")
        return found

    def has(self, tensor: str) -> bool:
        """Whether the file has a tensor of this name."""
        return tensor in self.file.tensors

    def refuse(self, reason: str) -> NoReturn:
        """Raises ValueError."""
        raise ValueError(f"load_gguf: {self.file.path} {reason}")
