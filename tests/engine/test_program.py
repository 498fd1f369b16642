"""A program runs, and one that is wrong is refused before it touches memory."""

from __future__ import annotations

import struct
import threading

import pytest
import torch
from engine.programs import (
    WIDTH,
    aten,
    gated,
    gated_inputs,
    gated_reference,
    joined,
)
from fusewheel.engine import ProgramWriter
from fusewheel.engine.program import sealed

run = torch.ops.fusewheel.run


def assert_equal(got, expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_any_number_of_rows():
    program = gated()
    for rows in (3, 1, 5, 0):
        inputs = gated_inputs(rows)
        assert_equal(program(*inputs), gated_reference(*inputs))


def test_views_and_sizes_that_are_computed():
    program = joined()
    for length in (5, 1, 0):
        keys, new = torch.randn(1, 2, length, 4), torch.randn(1, 1, 2, 4)
        both = torch.cat([keys, new.transpose(1, 2)], 2)
        assert_equal(program(keys, new), [both, both[:, 1:]])


def test_an_input_in_another_order_is_copied():
    inputs = gated_inputs()
    program, expected = gated(), gated_reference(*inputs)
    inputs[0] = inputs[0].t().contiguous().t()
    assert_equal(program(*inputs), expected)


def test_no_input_is_written_to_and_outputs_are_new():
    program, inputs = gated(), gated_inputs()
    before = [tensor.clone() for tensor in inputs]
    first, second = program(*inputs), program(*inputs)
    assert_equal(inputs, before)
    first[0].zero_()
    assert_equal(second, gated_reference(*inputs))


def test_every_kind_of_size():
    writer = ProgramWriter()
    n = writer.number("size", 0, 0)
    x = writer.input(torch.float32, (n, 2), (writer.number("stride", 0, 0), 1))
    minus = writer.number("subtract", 0, n)
    sizes = [
        (writer.number("add", n, 3), 10),
        (writer.number("subtract", n, 3), 4),
        (writer.number("multiply", n, 3), 21),
        (writer.number("floor_divide", n, 3), 2),
        (writer.number("subtract", 0, writer.number("floor_divide", minus, 2)), 4),
        (writer.number("floor_divide", minus, -1), 7),
        (writer.number("floor_divide", minus, -2), 3),
        (writer.number("add", writer.number("modulo", minus, -1), 1), 1),
        (writer.number("add", writer.number("modulo", minus, -2), 2), 1),
        (writer.number("modulo", n, 4), 3),
        (writer.number("modulo", minus, 4), 1),
        (writer.number("maximum", n, 9), 9),
        (writer.number("minimum", n, 5), 5),
    ]
    outputs = []
    for size, _ in sizes:
        copy = writer.result(torch.float32, (size,), (1,))
        writer.step(aten.clone.default, (writer.view(x, (size,), (0,)), None), (copy,))
        outputs.append(copy)
    program = writer.finish(outputs)
    x = torch.randn(7, 2)
    assert [t.shape[0] for t in program(x)] == [expected for _, expected in sizes]
    shapes = torch.ops.fusewheel.run(program.code.to("meta"), [x.to("meta")], program.outputs)
    assert [t.shape[0] for t in shapes] == [expected for _, expected in sizes]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i[:2], r"inputs must be the 3 tensors of the program, got 2"),
        (lambda i: [i[0].double(), *i[1:]], r"inputs\[0\] must be float32, got float64"),
        (lambda i: [*i[:2], i[2][:4]], r"inputs\[2\] must have shape \[8, 8\], got \[4, 8\]"),
        (lambda i: [i[0][0], *i[1:]], r"inputs\[0\] must have 2 dimensions, got 1"),
    ],
)
def test_wrong_inputs(change, message):
    with pytest.raises(RuntimeError, match=f"run: {message}"):
        gated()(*change(gated_inputs()))


def test_wrong_programs_and_outputs():
    program, inputs = gated(), gated_inputs()
    for wrong in (program.code.to(torch.int16), program.code[::2], program.code[None]):
        with pytest.raises(RuntimeError, match="run: program must be a contiguous uint8 tensor"):
            run(wrong, inputs, program.outputs)
    said = program.outputs
    others = ([*said[:i], n + 1, *said[i + 1 :]] for i, n in enumerate(said))
    for wrong in ([], said[:-1], [*said, 0], *others):
        with pytest.raises(RuntimeError, match="run: outputs must be what the program says"):
            run(program.code, inputs, wrong)
    for wrong in (torch.zeros(0, dtype=torch.uint8), torch.zeros(99, dtype=torch.uint8)):
        with pytest.raises(RuntimeError, match="must be a program of fusewheel, got other bytes"):
            run(wrong, inputs, program.outputs)


def changed(program, at: int, value: int) -> torch.Tensor:
    """The program with another number in its header."""
    code = program.code.clone()
    code[at : at + 4] = torch.frombuffer(bytearray(struct.pack("<I", value)), dtype=torch.uint8)
    return code


def test_header():
    program, inputs = gated(), gated_inputs()
    with pytest.raises(RuntimeError, match=r"must have version 1, .* got version 2"):
        run(changed(program, 8, 2), inputs, program.outputs)
    with pytest.raises(RuntimeError, match="damaged: its checksum is another"):
        run(changed(program, 40, 9), inputs, program.outputs)
    with pytest.raises(RuntimeError, match=r"damaged: it says that it has .* bytes, and has"):
        run(program.code[:-1], inputs, program.outputs)
    # A program that was read before is read again when its bytes have changed.
    code = program.code.clone()
    run(code, inputs, program.outputs)
    code[-1] ^= 1
    with pytest.raises(RuntimeError, match="checksum"):
        run(code, inputs, program.outputs)


def test_bytes_behind_the_end():
    program = gated()
    longer = sealed(bytes(program.code[32:].tolist()) + b"\0")
    with pytest.raises(RuntimeError, match="bytes follow after its end"):
        run(torch.frombuffer(bytearray(longer), dtype=torch.uint8), gated_inputs(), program.outputs)


def test_views_stay_inside_of_what_they_show():
    for sizes, strides, offset in (((9,), (1,), 0), ((4,), (2,), 2), ((1,), (1,), 8)):
        writer = ProgramWriter()
        x = writer.input(torch.float32, (8,), (1,))
        copy = writer.result(torch.float32, sizes, (1,))
        writer.step(
            aten.clone.default, (writer.view(x, sizes, strides, offset), None), (copy,), "m.py:5"
        )
        with pytest.raises(
            RuntimeError, match=r"reaches beyond what it shows\nin a .* from m\.py:5"
        ):
            writer.finish([copy])(torch.randn(8))
    for first, op, by in ((2**40, "multiply", 2**40), (-(2**60), "floor_divide", -1)):
        writer = ProgramWriter()
        n = writer.number("size", 0, 0)
        x = writer.input(torch.float32, (n,), (1,))
        huge = writer.number(op, writer.number("multiply", n, first), by)
        copy = writer.result(torch.float32, (2,), (1,))
        writer.step(aten.clone.default, (writer.view(x, (2,), (huge,)), None), (copy,))
        with pytest.raises(RuntimeError, match="does not fit 64 bits"):
            writer.finish([copy])(torch.randn(8))


@pytest.mark.parametrize("op", ["floor_divide", "modulo"])
def test_a_size_that_is_divided_by_0(op):
    writer = ProgramWriter()
    n = writer.number("size", 0, 0)
    x = writer.input(torch.float32, (n,), (1,))
    copy = writer.result(torch.float32, (writer.number(op, 8, n),), (1,))
    writer.step(aten.clone.default, (writer.view(x, (1,), (1,)), None), (copy,))
    with pytest.raises(RuntimeError, match="is divided by 0"):
        writer.finish([copy])(torch.randn(0))


def test_a_step_that_fails_names_the_line_of_the_model():
    writer = ProgramWriter()
    x = writer.input(torch.float32, (4, 8), (8, 1))
    weight = writer.input(torch.float32, (3,), (1,))
    y = writer.result(torch.float32, (4, 8), (8, 1))
    writer.step(
        torch.ops.fusewheel.rms_norm.default, (x, weight, 1e-6, 0), (y, None), "model.py:12"
    )
    program = writer.finish([y])
    with pytest.raises(
        RuntimeError, match=r"rms_norm: weight must have shape \[8\].*\n.*model.py:12"
    ):
        program(torch.randn(4, 8), torch.randn(3))


def test_an_operator_of_torch_that_fails():
    writer = ProgramWriter()
    x = writer.input(torch.float32, (4, 8), (8, 1))
    y = writer.result(torch.float32, (4, 8), (8, 1))
    writer.step(aten.matmul.default, (x, x), (y,), "model.py:3")
    found = r"aten::matmul failed: .+\nin a compiled program, from model\.py:3"
    with pytest.raises(RuntimeError, match=found) as error:
        writer.finish([y])(torch.randn(4, 8))
    # Older ones print it.
    newer = torch.__version__.split(".")[:2] >= ["2", "13"]
    assert ("cannot be multiplied" in str(error.value)) == newer


def test_a_result_that_is_not_what_the_program_says():
    writer = ProgramWriter()
    x = writer.input(torch.float32, (4,), (1,))
    y = writer.result(torch.float32, (5,), (1,))
    writer.step(aten.clone.default, (x, None), (y,), "model.py:2")
    with pytest.raises(RuntimeError, match=r"a result must have shape \[5\], got \[4\]\n.*py:2"):
        writer.finish([y])(torch.randn(4))


def test_a_result_in_another_order_is_copied():
    writer = ProgramWriter()
    x = writer.input(torch.float32, (2, 3), (3, 1))
    y = writer.result(torch.float32, (2, 3), (1, 2))
    writer.step(aten.clone.default, (x, None), (y,))
    given = torch.randn(2, 3)
    (copy,) = writer.finish([y])(given)
    assert copy.stride() == (1, 2) and torch.equal(copy, given)


def test_threads_share_a_program():
    program, failures = gated(), []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for rows in range(1, 30):
            inputs = [torch.randn(rows, WIDTH, generator=generator), *weights]
            try:
                assert_equal(program(*inputs), gated_reference(*inputs))
            except Exception as error:
                failures.append(error)

    weights = gated_inputs()[1:]
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
