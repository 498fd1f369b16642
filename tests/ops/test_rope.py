import fusewheel
import pytest
import torch


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
