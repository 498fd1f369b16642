"""Reads the header of a GGUF file, and gives its tensors over a memory map of the file.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusewheel.ops.choices import BlockKind
from fusewheel.ops.linear._blocks import FORMATS

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i"},
    **{6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"},
}
_FLOATING = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
_FORMATS = {format.number: format for format in FORMATS.values() if format.number < 1000}
_MOST_DIMENSIONS = 4
_LENGTH = struct.Struct("<Q").unpack_from


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor is in the file.

    Attributes:
        name: its name in the file.
        type: the number of its type, of ggml.
        shape: its sizes as torch orders them: in features last.
        offset: of its first byte in the file.
        bytes: how many it takes.
    """

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int
    bytes: int

    @property
    def kind(self) -> BlockKind | None:
        """The name of its block format; None if it holds floating numbers."""
        return _FORMATS[self.type].name if self.type in _FORMATS else None


class Texts(Sequence[str]):
    """The strings of an array in the file, which are decoded when they are asked for.

    A vocabulary has a hundred thousand of them, and the tokenizer reads it by itself. To ask for
    one by its index decodes all.

    Args:
        data: the file.
        start: the first byte of the array.
        count: the strings in it.
    """

    def __init__(self, data: mmap.mmap, start: int, count: int) -> None:
        self._data = data
        self._start = start
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        at = self._start
        for _ in range(self._count):
            (length,) = _LENGTH(self._data, at)
            yield _text(self._data[at + 8 : at + 8 + length])
            at += 8 + length

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class GgufFile:
    """A GGUF file: its metadata, and its tensors as views of a private memory map.

    Nothing is read from the disk before it is used. Writes to the tensors stay in this process.

    Args:
        path: the file.
        what: the function that was called, for messages.

    Attributes:
        path: the file, as text.
        metadata: the metadata; arrays are lists, those of strings `Texts`.
        tensors: what the file holds, by name.

    Raises:
        TypeError: `path` is neither text nor a path.
        ValueError: the file is no GGUF file, is cut short, or contradicts itself: sizes beyond its
            end, tensors that overlap, a name twice, a type that is not known.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], what: str = "load_gguf") -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"{what}: path must be a path, got {type(path).__name__}")
        self.path = os.fspath(path)
        self._what = what
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 24 or file.read(4) != _MAGIC:
                self._refuse("is not a GGUF file: it does not begin with a GGUF header")
            # Copied on writing: torch accepts it, and the file never changes.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._at = 4
        version, tensors, keys = self._numbers("IQQ")
        if version not in _VERSIONS:
            self._refuse(f"has version {version}; versions 2 and 3 are supported, little-endian")
        # A key takes 12 bytes at least, a tensor 24: a larger count would be a long wait.
        self._fits(12 * keys + 24 * tensors, f"{keys} keys and {tensors} tensors")
        self.metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string()
            if key in self.metadata:
                self._refuse(f"has the key {key!r} twice")
            self.metadata[key] = self._value(*self._numbers("I"))
        self.tensors = self._table(tensors)

    def tensor(self, name: str) -> Tensor:
        """A tensor over the map: floating, or blocks `[..., blocks of a row, bytes]`, uint8."""
        found = self.tensors[name]
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=found.bytes, offset=found.offset)
        return _typed(raw, found.type, found.shape)

    def read(self, name: str, index: int | None = None) -> Tensor:
        """A tensor, or entry `index` of its first dimension, read into memory of its own.

        The pages of the map are not touched.
        """
        found = self.tensors[name]
        parts, shape = (1, found.shape) if index is None else (found.shape[0], found.shape[1:])
        raw = bytearray(found.bytes // parts)
        with open(self.path, "rb") as file:
            file.seek(found.offset + (index or 0) * len(raw))
            if file.readinto(raw) != len(raw):
                self._refuse(f"was cut short while {name!r} was read")
        return _typed(torch.frombuffer(raw, dtype=torch.uint8), found.type, shape)

    def _table(self, count: int) -> dict[str, GgufTensor]:
        entries = []
        for _ in range(count):
            name = self._string()
            (dimensions,) = self._numbers("I")
            if not 1 <= dimensions <= _MOST_DIMENSIONS:
                self._refuse(f"has tensor {name!r} with {dimensions} dimensions, expected 1 to 4")
            shape = tuple(reversed(self._numbers(f"{dimensions}Q")))
            entries.append((name, shape, *self._numbers("IQ")))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            self._refuse(f"has alignment {alignment!r}, expected a power of two from 8 on")
        start = -(-self._at // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        for name, shape, type, offset in entries:
            if name in found:
                self._refuse(f"has tensor {name!r} twice")
            size = self._size(name, shape, type)
            if offset % alignment:
                self._refuse(
                    f"has tensor {name!r} at byte {offset}, which {alignment} does not divide"
                )
            if start + offset + size > len(self._map):
                self._refuse(
                    f"is cut short: tensor {name!r} ends at byte {start + offset + size}, the file "
                    f"at {len(self._map)}"
                )
            found[name] = GgufTensor(name, type, shape, start + offset, size)
        ordered = sorted(found.values(), key=lambda tensor: tensor.offset)
        for first, second in itertools.pairwise(ordered):
            if first.offset + first.bytes > second.offset:
                self._refuse(f"has tensors that overlap: {first.name!r} and {second.name!r}")
        return found

    def _size(self, name: str, shape: tuple[int, ...], type: int) -> int:
        elements = math.prod(shape)
        if elements == 0:
            self._refuse(f"has tensor {name!r} without elements")
        if type in _FLOATING:
            return elements * _FLOATING[type].itemsize
        if type not in _FORMATS:
            known = ", ".join(f"{f.name} ({f.number})" for f in _FORMATS.values())
            self._refuse(
                f"has tensor {name!r} of type {type}; supported are F32 (0), F16 (1), BF16 (30), "
                f"{known}"
            )
        format = _FORMATS[type]
        if shape[-1] % format.weights:
            self._refuse(
                f"has tensor {name!r} with rows of {shape[-1]} weights, no multiple of the "
                f"{format.weights} of a block of {format.name}"
            )
        return elements // format.weights * format.bytes

    def _value(self, type: int) -> Any:
        if type in _NUMBERS:
            return self._numbers(_NUMBERS[type])[0]
        if type == _STRING:
            return self._string()
        if type != _ARRAY:
            self._refuse(f"has metadata of type {type} before byte {self._at}")
        element, count = self._numbers("IQ")
        if element in _NUMBERS:
            self._fits(count * struct.calcsize(f"<{_NUMBERS[element]}"), f"an array of {count}")
            return list(self._numbers(f"{count}{_NUMBERS[element]}"))
        if element != _STRING:
            self._refuse(f"has an array of type {element} before byte {self._at}")
        self._fits(8 * count, f"an array of {count} strings")
        return self._texts(count)

    def _texts(self, count: int) -> Texts:
        start, end = self._at, len(self._map) - 8
        for _ in range(count):
            if self._at > end:
                self._fits(8, "the length of a string")
            self._at += 8 + _LENGTH(self._map, self._at)[0]
        self._fits(0, "the strings of an array")
        return Texts(self._map, start, count)

    def _string(self) -> str:
        (length,) = self._numbers("Q")
        self._fits(length, f"a string of {length} bytes")
        text = self._map[self._at : self._at + length]
        self._at += length
        return _text(text)

    def _numbers(self, format: str) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{format}")
        self._fits(size, f"{size} bytes of its header")
        found = struct.unpack_from(f"<{format}", self._map, self._at)
        self._at += size
        return found

    def _fits(self, size: int, what: str) -> None:
        if size > len(self._map) - self._at:
            self._refuse(f"is cut short or damaged: {what} at byte {self._at} go beyond its end")

    def _refuse(self, reason: str) -> None:
        raise ValueError(f"{self._what}: {self.path} {reason}")


def _text(data: bytes) -> str:
    # Tokens may be parts of characters.
    return data.decode("utf-8", "replace")


def _typed(raw: Tensor, type: int, shape: tuple[int, ...]) -> Tensor:
    """Bytes of a type of ggml as numbers or blocks."""
    if type in _FLOATING:
        return raw.view(_FLOATING[type]).view(shape)
    format = _FORMATS[type]
    *rows, columns = shape
    return raw.view(*rows, columns // format.weights, format.bytes)
