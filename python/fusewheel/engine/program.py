"""Writes a program as the bytes that ``fusewheel::run`` reads.

The format is described in ``cpu_kernels/engine/program.h``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusewheel._torch.overloads import OpOverload
from fusewheel.engine.operators import step_letters

VERSION = 1
UNUSED = 0xFFFFFFFF
# PyTorch's own numbers, which it never changes.
DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}
KINDS = (
    "constant",
    "size",
    "stride",
    "add",
    "subtract",
    "multiply",
    "floor_divide",
    "modulo",
    "maximum",
    "minimum",
)
_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1}


@dataclass(frozen=True)
class Number:
    """A size that is known when the program runs: its place in the program's table."""

    index: int


Size = int | Number


@dataclass(frozen=True)
class Program:
    """What ``fusewheel::run`` takes.

    Attributes:
        code: the program, a uint8 tensor [bytes].
        outputs: dtype, rank, sizes and strides of its results, see `fusewheel.engine.outputs`.
    """

    code: Tensor
    outputs: list[int]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Run the program."""
        found: list[Tensor] = torch.ops.fusewheel.run(self.code, list(inputs), self.outputs)
        return found


class ProgramWriter:
    """Collects the values and steps of a program.

    Inputs come first. Values are named by the numbers that `input`, `view` and `step` return.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, int, int], int] = {}
        self._values: list[tuple[int, int, int, int, list[int], list[int]]] = []
        self._inputs = 0
        self._texts: dict[str, int] = {}
        self._steps: list[bytes] = []

    def number(self, kind: str, a: Size = 0, b: Size = 0) -> Number:
        """A size that is computed: one of `KINDS`.

        ``size`` and ``stride`` take an input and a dimension, ``constant`` a value, and all others
        two sizes.
        """
        code = KINDS.index(kind)
        if kind == "constant":
            entry = code, 0, 0, _integer(a)
        elif kind in ("size", "stride"):
            entry = code, _integer(a), _integer(b), 0
        else:
            entry = code, self._index(a), self._index(b), 0
        return Number(self._numbers.setdefault(entry, len(self._numbers)))

    def input(self, dtype: torch.dtype, sizes: Sequence[Size], strides: Sequence[Size]) -> int:
        """The next input."""
        if self._inputs != len(self._values):
            raise ValueError("all inputs of a program come before its other values")
        self._inputs += 1
        return self._value(0, dtype, 0, 0, sizes, strides)

    def view(
        self, of: int, sizes: Sequence[Size], strides: Sequence[Size], offset: Size = 0
    ) -> int:
        """An input or a result in another shape; strides and offset count its elements."""
        kind, dtype = self._values[of][:2]
        if kind == 2:
            raise ValueError("a view shows an input or a result, not another view")
        dtypes = {number: dtype for dtype, number in DTYPES.items()}
        return self._value(2, dtypes[dtype], of, self._index(offset), sizes, strides)

    def result(self, dtype: torch.dtype, sizes: Sequence[Size], strides: Sequence[Size]) -> int:
        """A value that one of the steps computes."""
        return self._value(1, dtype, 0, 0, sizes, strides)

    def step(
        self,
        overload: OpOverload | str,
        arguments: Sequence[Any],
        results: Sequence[int | None],
        line: str = "",
    ) -> None:
        """Calls an operator.

        Args:
            overload: the operator, or the name of a step that is no operator (`step_letters`).
            arguments: one for each argument of its schema. A tensor is the number of a value; an
                integer may be a `Number`.
            results: a value for each of its results, None for what nothing uses.
            line: the line of the model that it comes from, for errors; default "".

        Raises:
            ValueError: if programs cannot call this operator, or with these arguments.
        """
        letters = step_letters(overload)
        if letters is None:
            raise ValueError(f"programs cannot call {overload}")
        name, variant = (overload, "") if isinstance(overload, str) else _names(overload)
        if len(arguments) != len(letters):
            raise ValueError(f"{overload} takes {len(letters)} arguments, got {len(arguments)}")
        packed = [_text(name), _text(variant)]
        packed.append(_words(self._texts.setdefault(line, len(self._texts)), len(letters)))
        for letter, argument in zip(letters, arguments, strict=True):
            packed.append(self._argument(letter, argument))
        packed.append(_words(len(results), *(UNUSED if r is None else r for r in results)))
        self._steps.append(b"".join(packed))

    def finish(self, outputs: Sequence[int]) -> Program:
        """The program; `outputs` are results of its steps, each named once."""
        used = [n for o in outputs for n in (*self._values[o][4], *self._values[o][5])]
        shown = max(used, default=-1) + 1  # what they are computed from comes before them
        numbers = [struct.pack("<IIIq", *entry) for entry in self._numbers]
        values = [
            _words(kind, dtype, len(sizes), of, offset, *sizes, *strides)
            for kind, dtype, of, offset, sizes, strides in self._values
        ]
        body = b"".join(
            [
                _words(len(numbers)),
                *numbers,
                _words(self._inputs, len(values)),
                *values,
                _words(len(self._texts)),
                *map(_text, self._texts),
                _words(len(self._steps)),
                *self._steps,
                _words(shown, len(outputs), *outputs),
            ]
        )
        declared = [shown, *(part for entry in list(self._numbers)[:shown] for part in entry)]
        declared.append(len(outputs))
        for output in outputs:
            _, dtype, _, _, sizes, strides = self._values[output]
            declared += [dtype, len(sizes), *sizes, *strides]
        code = torch.frombuffer(bytearray(sealed(body)), dtype=torch.uint8)
        return Program(code, declared)

    def _index(self, size: Size) -> int:
        return size.index if isinstance(size, Number) else self.number("constant", size).index

    def _value(
        self,
        kind: int,
        dtype: torch.dtype,
        of: int,
        offset: int,
        sizes: Sequence[Size],
        strides: Sequence[Size],
    ) -> int:
        if dtype not in DTYPES:
            raise ValueError(f"programs have no values of dtype {dtype}")
        if len(sizes) != len(strides):
            raise ValueError(f"{len(sizes)} sizes and {len(strides)} strides")
        dims = [self._index(size) for size in sizes], [self._index(stride) for stride in strides]
        self._values.append((kind, DTYPES[dtype], of, offset, *dims))
        return len(self._values) - 1

    def _argument(self, letter: str, argument: Any) -> bytes:
        if argument is None and letter in "ONFdm-":
            return _words(ord("-"))
        if letter in "TO":
            return _words(ord(letter), argument)
        if letter == "L":
            return _words(ord(letter), len(argument), *argument)
        if letter in "iN":
            return _words(ord(letter), self._index(argument))
        if letter == "I":
            return _words(ord(letter), len(argument), *map(self._index, argument))
        if letter in "fF":
            return _words(ord(letter)) + struct.pack("<d", argument)
        if letter == "b":
            return _words(ord(letter), int(bool(argument)))
        if letter == "d" and argument in DTYPES:
            return _words(ord(letter), DTYPES[argument])
        if letter == "m" and argument in _FORMATS:
            return _words(ord(letter), _FORMATS[argument])
        raise ValueError(f"programs have no such argument: {argument!r}")


def sealed(body: bytes) -> bytes:
    """What follows a program's header, with its header in front."""
    seal = struct.pack("<II", zlib.crc32(body), 0)
    return struct.pack("<8sIIQ", b"FUSEWHEL", VERSION, 0, 32 + len(body)) + seal + body


def _integer(size: Size) -> int:
    if isinstance(size, Number):
        raise TypeError("this takes an integer, and no computed size")
    return size


def _names(overload: OpOverload) -> tuple[str, str]:
    return overload._schema.name, overload._schema.overload_name


def _words(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _words(len(encoded)) + encoded
