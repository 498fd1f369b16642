import fusewheel
import torch
from fuzz import shapes
from oracle import assert_as_good_as_eager


def test_large_arguments_neither_overflow_nor_lose_their_sign():
    gate = torch.tensor([-1e4, -200.0, -50.0, 50.0, 200.0, 1e4])
    got = fusewheel.silu_mul(gate, torch.ones(6))
    assert_as_good_as_eager(
        got, torch.nn.functional.silu(gate), torch.nn.functional.silu(gate.double())
    )


def test_gradients_match_eager_for_mixed_needs():
    gate, up = torch.randn(7, 33, requires_grad=True), torch.randn(33)
    fusewheel.silu_mul(gate, up).sum().backward()
    got, gate.grad = gate.grad, None
    (torch.nn.functional.silu(gate) * up).sum().backward()
    torch.testing.assert_close(got, gate.grad)


def test_backward_gives_the_broadcast_shape_to_both_gradients():
    grad, gate, up = torch.randn(2, 1), torch.randn(1), torch.randn(3)
    call = torch.ops.fusewheel.silu_mul_backward
    for given in ((grad, gate, up), tuple(t.to("meta") for t in (grad, gate, up))):
        assert all(g.shape == (2, 3) for g in call(*given))
    operator = {o.name: o for o in fusewheel.ops.operators()}["silu_mul_backward"]
    assert all(g.shape == (2, 3) for g in operator.reference(grad, gate, up))


FUZZ = {
    "silu_mul": shapes.pair,
    "silu_mul_backward": shapes.grad_and_pair,
    "silu_mul_packed": lambda d: (shapes.packed(d),),
    "silu_mul_packed_backward": shapes.grad_and_packed,
}
