"""Damaged programs: an error or the right result, and never a crash.

``nox -s sanitize`` runs these tests on kernels that watch their memory. The night tries more.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable

import pytest
import torch
from engine.every_step import every_step
from engine.programs import gated, gated_inputs, grown, joined, layer, layer_inputs
from fusewheel.engine import Program, ProgramWriter
from fusewheel.engine.growing import append
from fusewheel.engine.program import KINDS, sealed

HEADER = 32
PROGRAMS = (
    (gated(), gated_inputs()),
    (joined(), [torch.randn(1, 2, 3, 4), torch.randn(1, 1, 2, 4)]),
    (grown(), [append(torch.tensor([]), torch.randn(1, 2, 3, 4)), torch.randn(1, 2, 1, 4)]),
    (layer(), layer_inputs()),
)


def tried(code: bytes, program: Program, inputs: list[torch.Tensor]) -> str:
    """The error of a damaged program; empty if it runs."""
    tensor = torch.empty(0, dtype=torch.uint8)
    if code:
        tensor = torch.frombuffer(bytearray(code), dtype=torch.uint8)
    try:
        torch.ops.fusewheel.run(tensor, inputs, program.outputs)
    except RuntimeError as error:
        assert str(error)
        return str(error)
    return ""


def flipped(code: bytes, draw: random.Random) -> bytes:
    bits = bytearray(code)
    for _ in range(draw.choice((1, 1, 2, 5))):
        bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)
    return bytes(bits)


def replaced(code: bytes, draw: random.Random) -> bytes:
    """One of the 32-bit words is another: large, small, or one that stands elsewhere."""
    words = bytearray(code)
    at = draw.randrange(len(words) // 4) * 4
    other = draw.randrange(len(words) // 4) * 4
    value = draw.choice(
        (0, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32 - 1, struct.unpack_from("<I", words, other)[0])
    )
    struct.pack_into("<I", words, at, value)
    return bytes(words)


def cut(code: bytes, draw: random.Random) -> bytes:
    return code[: draw.randrange(len(code))]


def moved(code: bytes, draw: random.Random) -> bytes:
    """A piece is missing, or is there twice."""
    at, size = draw.randrange(len(code)), draw.choice((1, 4, 8, 20))
    return draw.choice((code[:at] + code[at + size :], code[: at + size] + code[at:]))


DAMAGES = (flipped, replaced, cut, moved)


def damage(programs: Iterable[tuple[Program, list[torch.Tensor]]], cases: int) -> None:
    draw = random.Random(torch.initial_seed())
    for program, inputs in programs:
        whole = bytes(program.code.tolist())
        for _ in range(cases):
            change = draw.choice(DAMAGES)
            broken = change(whole, draw)
            # As it came: the checksum, the length or the version is wrong.
            assert broken == whole or tried(broken, program, inputs)
            # With a header that fits, so that everything behind it is read.
            tried(sealed(change(whole[HEADER:], draw)), program, inputs)
            tried(draw.randbytes(draw.randrange(400)), program, inputs)
        assert not tried(whole, program, inputs)


def test_damaged_programs():
    damage(PROGRAMS, 300)


def test_damaged_programs_of_every_step():
    damage(every_step().values(), 10)


def test_each_word_of_every_step():
    """One after the other is another, behind the name of the operator that is called."""
    for key, (program, inputs) in every_step().items():
        name, _, overload = key.rpartition(".")
        called = name.encode() + struct.pack("<I", len(overload)) + overload.encode()
        body = bytes(program.code[HEADER:].tolist())
        if name:
            for at in range(body.index(called) + len(called), len(body), 4):
                for value in (255, 2**32 - 1):
                    broken = body[:at] + struct.pack("<I", value) + body[at + 4 :]
                    tried(sealed(broken), program, inputs)


@pytest.mark.nightly
def test_many_damaged_programs():
    damage(PROGRAMS, 30_000)
    damage(every_step().values(), 3_000)


def test_no_message_is_that_of_an_accident():
    """Each refusal says what is wrong; none comes from a container that is asked for too much."""
    draw = random.Random(0)
    program, inputs = PROGRAMS[0]
    body = bytes(program.code[HEADER:].tolist())
    found = {tried(sealed(replaced(body, draw)), program, inputs) for _ in range(300)}
    for message in found - {""}:
        assert message.startswith("run: ") or "in a compiled program" in message, message


def test_a_size_is_computed_from_those_before_it():
    """From itself, or from one that does not exist, is refused before anything is read there."""
    writer = ProgramWriter()
    rows = writer.number("size", 0, 0)
    twice = writer.number("add", rows, rows)
    x = writer.input(torch.float32, (rows, 2), (2, 1))
    both = writer.result(torch.float32, (twice, 2), (2, 1))
    writer.step(torch.ops.aten.cat.default, ([x, x], 0), (both,))
    program = writer.finish([both])
    entry = struct.pack("<IIIq", KINDS.index("add"), rows.index, rows.index, 0)
    body = bytes(program.code[HEADER:].tolist())
    assert body.count(entry) == 1
    for later in (twice.index, 2**31):
        for a, b in ((later, rows.index), (rows.index, later)):
            broken = body.replace(entry, struct.pack("<IIIq", KINDS.index("add"), a, b, 0))
            said = tried(sealed(broken), program, [torch.ones(3, 2)])
            assert "a size is computed from one that comes later" in said


@pytest.mark.parametrize(("dims", "error"), [(64, ""), (65, "a value has 65 dimensions")])
def test_a_value_has_as_many_dimensions_as_a_tensor_may(dims, error):
    writer = ProgramWriter()
    layout = (1,) * dims, (1,) * dims
    x = writer.input(torch.float32, *layout)
    both = writer.result(torch.float32, *layout)
    writer.step("engine::add", (x, x), (both,))
    program = writer.finish([both])
    said = tried(bytes(program.code.tolist()), program, [torch.ones((1,) * min(dims, 64))])
    assert error in said
    assert bool(said) == bool(error)
