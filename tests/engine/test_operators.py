"""The operators that programs may call, and how to add one."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from fusewheel import attention_decode
from fusewheel.engine import ProgramWriter, add_step, step_letters
from fusewheel.engine.operators import _table, letters_of
from neighbours import assert_call_as_good_as_eager


def overloads():
    for key in _table():
        name, _, overload = key.rpartition(".")
        room, _, operator = name.partition("::")
        if room in ("aten", "fusewheel"):
            packet = getattr(getattr(torch.ops, room), operator)
            yield getattr(packet, overload or "default")


def test_letters_are_those_of_the_schemas():
    """Nothing else checks what a program passes to them."""
    found = list(overloads())
    assert len(found) > 50
    for overload in found:
        assert step_letters(overload) == letters_of(overload._schema), overload


def test_only_pure_operators():
    names = {overload._schema.name for overload in overloads()}
    assert {"fusewheel::rms_norm", "fusewheel::linear_int4", "aten::cat"} <= names
    others = {"fusewheel::add_out", "fusewheel::rope_", "fusewheel::bind", "fusewheel::run"}
    assert not names & others


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "groups", "keys"), [(6, 2, 70), (6, 2, 5), (4, 4, 80), (3, 1, 600)]
)
def test_attention_of_one_query(dtype, heads, groups, keys):
    """As good as PyTorch's."""
    writer = ProgramWriter()
    sizes = (2, heads, 1, 16), (2, groups, keys, 16)
    strides = (heads * 16, 16, 16, 1), (groups * keys * 16, keys * 16, 16, 1)
    q, k, v = (writer.input(dtype, sizes[i], strides[i]) for i in (0, 1, 1))
    y = writer.result(dtype, sizes[0], strides[0])
    writer.step("engine::attention", (q, k, v, 0.3), (y,))
    program = writer.finish([y])

    def attention(q, k, v):
        return [F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True)]

    given = tuple(torch.randn(sizes[i]).to(dtype) for i in (0, 1, 1))
    assert_call_as_good_as_eager(lambda f, a: tuple(f(*a)), program, attention, given, "attention")


def one_step(name, given, letters, expected):
    """A program of one step; the rest of its arguments follow the tensors."""
    writer = ProgramWriter()
    inputs = [writer.input(t.dtype, t.shape, t.stride()) for t in given]
    y = writer.result(expected.dtype, expected.shape, expected.stride())
    writer.step(name, (*inputs, *letters), (y,))
    return writer.finish([y])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_steps_of_its_own(dtype):
    """Their bits are those of the operators in their place, and they keep no tensor."""
    x, y, square = (torch.randn(shape).to(dtype) for shape in ((3, 4), (3, 4), (4, 4)))
    query, key = torch.randn(2, 4, 3, 16).to(dtype), torch.randn(2, 4, 70, 16).to(dtype)
    few, more = key[:, :2, :9].contiguous(), query[:, :, :1].contiguous()
    for name, given, letters, function in (
        ("engine::add", (x, y), (), torch.add),
        ("engine::addmm", (square[0].clone(), x, square), (), torch.addmm),
        ("engine::attention", (query, key, key), (None,), F.scaled_dot_product_attention),
        (
            "engine::attention",
            (more, few, few),
            (None,),
            lambda q, k, v: attention_decode(q, k, v, torch.full((2,), 9)),
        ),
        (
            "engine::attention",
            (query, few, few),
            (0.3,),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True),
        ),
    ):
        expected = function(*given).contiguous()
        program = one_step(name, given, letters, expected)
        counts = [torch._C._storage_Use_Count(t.untyped_storage()._cdata) for t in given]
        (found,) = program(*given)
        assert torch.equal(found, expected), name
        kept = [torch._C._storage_Use_Count(t.untyped_storage()._cdata) for t in given]
        assert kept == counts, name


def test_a_step_that_fails_keeps_no_tensor():
    heads, mask = torch.randn(4, 3, 16), torch.ones(3, 3, dtype=torch.bool)
    given = (heads, heads.clone(), heads.clone(), mask)
    program = one_step("engine::masked_attention", given, (None,), heads)
    with pytest.raises(RuntimeError, match="values must have 4 dimensions, got 3"):
        program(*given)
    alive = [weakref.ref(tensor) for tensor in given]
    del heads, mask, given
    gc.collect()
    assert not any(tensor() is not None for tensor in alive)


def test_an_operator_of_somebody_else():
    with torch.library._scoped_library("steps_of_mine", "DEF") as library:
        library.define("scale(Tensor x, float by, int[] shape, int? n=None) -> (Tensor, Tensor)")
        library.impl(
            "scale", lambda x, by, shape, n=None: (x * by, x.new_ones(shape) * (n or 1)), "CPU"
        )
        overload = torch.ops.steps_of_mine.scale.default
        writer = ProgramWriter()
        x = writer.input(torch.float32, (3,), (1,))
        y = writer.result(torch.float32, (3,), (1,))
        z = writer.result(torch.float32, (2, 4), (4, 1))
        with pytest.raises(ValueError, match=r"programs cannot call steps_of_mine\.scale\.default"):
            writer.step(overload, (x, 2.0, (2, 4), 5), (y, z))
        add_step(overload)
        add_step(overload)
        writer.step(overload, (x, 2.0, (2, 4), 5), (y, z))
        given = torch.randn(3)
        scaled, filled = writer.finish([y, z])(given)
        assert torch.equal(scaled, given * 2) and torch.equal(filled, torch.full((2, 4), 5.0))


@pytest.mark.parametrize(
    ("overload", "reason"),
    [
        (torch.ops.aten.add_.Tensor, "it writes to an argument"),
        (torch.ops.aten.view.default, "or returns a view of one"),
        (torch.ops.aten.add.Tensor, "its argument alpha is of type"),
        (torch.ops.aten.unbind.int, "returns a view|its results are not tensors"),
        (torch.ops.aten.size.int, "its results are not tensors"),
    ],
)
def test_operators_that_no_program_can_call(overload, reason):
    with pytest.raises(ValueError, match=reason):
        add_step(overload)
    with pytest.raises(TypeError, match="add_step: overload must be like"):
        add_step(overload.overloadpacket)


def test_a_program_names_an_operator_that_is_not_there():
    writer = ProgramWriter()
    x = writer.input(torch.float32, (3,), (1,))
    y = writer.result(torch.float32, (3,), (1,))
    writer.step(torch.ops.aten.sqrt.default, (x,), (y,))
    program = writer.finish([y])
    body = bytes(program.code[32:].tolist()).replace(b"aten::sqrt", b"aten::sqrx")
    from fusewheel.engine.program import sealed

    code = torch.frombuffer(bytearray(sealed(body)), dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="calls aten::sqrx, which programs cannot call here"):
        torch.ops.fusewheel.run(code, [torch.ones(3)], program.outputs)
