"""What the metadata of a GGUF file says about its model."""

from __future__ import annotations

from typing import NoReturn

from fusewheel.quantization.gguf.file import GgufFile

Number = int | float


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

    def number(self, key: str) -> Number | None:
        """A number; None if the file does not have it.

        Raises:
            ValueError: the file has something else there.
        """
        found = self.file.metadata.get(self.name(key))
        if found is not None and (isinstance(found, bool) or not isinstance(found, (int, float))):
            self.refuse(f"has no number for {self.name(key)}")
        return found

    def positive(self, key: str) -> Number:
        """A number above 0.

        Raises:
            ValueError: the file does not have it.
        """
        found = self.number(key)
        if found is None or not found > 0:
            self.refuse(f"must say {self.name(key)}")
        return found

    def has(self, tensor: str) -> bool:
        """Whether the file has a tensor of this name."""
        return tensor in self.file.tensors

    def refuse(self, reason: str) -> NoReturn:
        """Raises ValueError."""
        raise ValueError(f"load_gguf: {self.file.path} {reason}")
