import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fuzz.draw import Draw


class Wrapped(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def tables(length: int, size: int, base: float = 10000.0):
    frequency = base ** (-torch.arange(0, size, 2) / size)
    angle = torch.outer(torch.arange(length), frequency)
    return angle.cos(), angle.sin()


def test_rotate_half_is_what_hugging_face_computes():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    cos, sin = (torch.cat((t, t), -1)[None] for t in tables(9, 16))
    q, k = torch.randn(2, 6, 9, 16), torch.randn(2, 2, 9, 16)
    torch.testing.assert_close(fusewheel.rope(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin))


def test_interleaved_is_a_product_of_complex_numbers():
    cos, sin = tables(9, 16)
    q, k = torch.randn(2, 6, 9, 16), torch.randn(2, 2, 9, 16)
    turn = torch.complex(cos, sin)
    got = fusewheel.rope(
        q, k, cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1), interleaved=True
    )
    for rotated, x in zip(got, (q, k), strict=True):
        want = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (8, 2))) * turn)
        torch.testing.assert_close(rotated, want.flatten(-2))


@pytest.mark.parametrize("interleaved", [False, True])
def test_backward_turns_back(interleaved):
    cos, sin = tables(5, 8)
    wide = [
        t.repeat_interleave(2, -1) if interleaved else torch.cat((t, t), -1) for t in (cos, sin)
    ]
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 1, 5, 8)
    rotated = fusewheel.rope(q, k, *wide, interleaved=interleaved)
    back = torch.ops.fusewheel.rope_backward(*rotated, *wide, interleaved)
    torch.testing.assert_close(back, (q, k))


def test_a_transposed_projection_keeps_its_layout():
    q = torch.randn(2, 9, 6, 16).transpose(1, 2)
    cos = torch.randn(9, 16)
    rotated, _ = fusewheel.rope(q, q, cos, cos)
    assert rotated.stride() == q.stride()


def test_one_unused_output_is_no_obstacle():
    q, k = (torch.randn(1, 2, 3, 4, requires_grad=True) for _ in range(2))
    cos = torch.randn(3, 4)
    fusewheel.rope(q, k, cos, cos)[0].sum().backward()
    assert q.grad.any() and not k.grad.any()


@pytest.mark.parametrize("interleaved", [False, True])
def test_narrower_tables_rotate_the_first_elements_and_keep_the_others(dtype, interleaved):
    make = Make(dtype)
    q, k, cos, sin = make(2, 6, 9, 34), make(2, 2, 9, 34), make(9, 16), make(9, 16)
    wide = fusewheel.rope(q[..., :16], k[..., :16], cos, sin, interleaved)
    for got, first, x in zip(
        fusewheel.rope(q, k, cos, sin, interleaved), wide, (q, k), strict=True
    ):
        assert torch.equal(got, torch.cat((first, x[..., 16:]), -1))


def test_partial_and_interleaved_is_what_gpt_j_computes():
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    cos, sin = tables(9, 8)
    q, k = torch.randn(2, 6, 9, 16), torch.randn(2, 2, 9, 16)
    got = fusewheel.rope(q, k, *(t.repeat_interleave(2, -1) for t in (cos, sin)), interleaved=True)
    for rotated, x in zip(got, (q, k), strict=True):
        turned = apply_rotary_pos_emb(x[..., :8].transpose(1, 2), sin[None], cos[None])
        want = torch.cat((turned.transpose(1, 2), x[..., 8:]), -1)
        torch.testing.assert_close(rotated, want)


@pytest.mark.parametrize("positions", [[[5, 0, 2], [2, 2, 8]], [[1, 7, 3]], [8, 8, 0]])
def test_positions_choose_rows_of_the_tables(dtype, positions):
    make = Make(dtype)
    arguments = make(2, 6, 3, 16), make(2, 2, 3, 16)
    cos, sin, rows = make(9, 16), make(9, 16), torch.tensor(positions)
    results = []
    for given in ((cos, sin, False, rows), (cos[rows], sin[rows], False, None)):
        q, k = (t.detach().requires_grad_() for t in arguments)
        rotated = fusewheel.rope(q, k, *given)
        results.append((*rotated, *torch.autograd.grad(rotated, (q, k), arguments)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_position_that_is_no_row():
    q, k, cos = torch.randn(2, 4, 3, 9), torch.randn(2, 1, 3, 9), torch.randn(5, 6)
    emulated = any(b.facts.get("cuda") == "emulated" for b in fusewheel.backends())
    for wrong in (5, -1, 2**40, -(2**40)):
        positions = torch.tensor([[0, 4, 1], [0, wrong, 4]])
        if not emulated:
            with pytest.raises(RuntimeError, match=f"rope: positions .*0 and 4, got {wrong}"):
                fusewheel.rope(q, k, cos, cos, False, positions)
            continue
        for rotated in fusewheel.rope(q, k, cos, cos, False, positions):
            assert rotated[1, :, 1].isnan().all()
            assert rotated.isnan().sum() == rotated[1, :, 1].numel()


def test_a_program_that_knows_nothing_of_positions():
    """Saved by an earlier version: one argument less."""

    def program(q, k, cos, sin):
        return torch.ops.fusewheel.rope(q, k, cos, sin, False)

    q, k = (torch.randn(1, heads, 3, 4, requires_grad=True) for heads in (2, 1))
    arguments = q, k, *torch.randn(2, 3, 4)
    want = fusewheel.rope(*arguments)
    exported = torch.export.export(Wrapped(program), arguments).module()
    for run in (program, torch.jit.trace(program, arguments), exported):
        torch.testing.assert_close(run(*arguments), want)
    gradients = torch.autograd.grad(program(*arguments), (q, k), want)
    torch.testing.assert_close(gradients, torch.autograd.grad(want, (q, k), want))
    torch.testing.assert_close(
        torch.func.jacrev(program)(*arguments), torch.func.jacrev(fusewheel.rope)(*arguments)
    )


def test_heads_of_one_element_lie_where_compilers_expect_them():
    """Their last stride may be anything."""
    x, table = torch.ones(1, 2, 3, 1).as_strided((1, 2, 3, 1), (6, 3, 1, 5)), torch.ones(3, 0)
    operator = {o.name: o for o in fusewheel.ops.operators()}["rope"]
    arguments = x, x, table, table, False, None
    for real, fake in zip(operator.overload(*arguments), operator.fake(*arguments), strict=True):
        assert torch.equal(real, x) and real.stride() == fake.stride()


def any_tables(d: Draw, batch: int, length: int, size: int):
    """cos, sin, interleaved, positions."""
    rotated = 2 * d.integer(0, size // 2)

    def shape(*rest: int):
        return (*d.choice((), (1,), (batch,)), *rest)

    if d.flag():
        tables = (d.tensor(*shape(length, rotated)) for _ in range(2))
        return *tables, d.flag(), None
    rows = d.size(1, 64)
    tables = (d.tensor(rows, rotated) for _ in range(2))
    positions = d.integers(*shape(length), least=0, most=rows - 1, dtype=torch.int64)
    return *tables, d.flag(), positions


def any_arguments(d: Draw):
    batch, length, size = d.size(most=3), d.size(most=17), d.size(most=129)
    q, k = (d.tensor(batch, d.size(most=5), length, size) for _ in range(2))
    return q, k, *any_tables(d, batch, length, size)


FUZZ = {"rope": any_arguments, "rope_backward": any_arguments}
