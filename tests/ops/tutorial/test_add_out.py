import fusewheel
import pytest
import torch
from fuzz.draw import Draw
from fuzz.shapes import pair


def test_writes_and_returns_the_given_tensor():
    a, b, out = torch.randn(3, 4), torch.randn(4), torch.empty(3, 4)
    assert fusewheel.add_out(a, b, out) is out
    assert torch.equal(out, a + b)


def test_the_version_counter_goes_up_and_autograd_notices():
    x = torch.randn(3, requires_grad=True)
    saved = torch.ones(3)
    product = x * saved
    before = saved._version
    fusewheel.add_out(torch.ones(3), torch.ones(3), saved)
    assert saved._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_gradients_flow_into_the_inputs_and_not_into_the_old_value():
    a, b, old = (torch.randn(3, requires_grad=True) for _ in range(3))
    out = old * 2
    fusewheel.add_out(a, b, out)
    (out * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert torch.equal(a.grad, torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(b.grad, a.grad)
    assert old.grad is None or not old.grad.any()


def test_a_leaf_that_requires_grad_is_refused():
    out = torch.zeros(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        fusewheel.add_out(torch.ones(3), torch.ones(3), out)


def test_may_write_over_an_input():
    a, b = torch.randn(255), torch.randn(255)
    want = a + b
    fusewheel.add_out(a, b, a)
    assert torch.equal(a, want)


def test_columns_of_one_tensor_may_be_written_beside_each_other():
    table = torch.randn(9, 16)
    want = table[:, :8] + table[:, 4:12]
    fusewheel.add_out(table[:, :8], table[:, 4:12], table[:, 8:])
    assert torch.equal(table[:, 8:], want)


def test_dimensions_that_lie_apart():
    a = torch.randn((2,) * 18)
    b = a.permute(*reversed(range(18)))  # no dimension continues another
    out = torch.empty_like(a)
    assert torch.equal(fusewheel.add_out(a, b, out), a + b)


def test_more_dimensions_that_lie_apart_than_a_kernel_can_be_told_are_refused():
    out = torch.empty(34).as_strided((2,) * 33, (1,) * 33)
    zero = torch.zeros(()).expand(out.shape)
    message = "add_out: at most 32 dimensions are supported, not counting those that continue"
    with pytest.raises(RuntimeError, match=message):
        fusewheel.add_out(zero, zero, out)


def test_any_strides_will_do_where_there_are_no_elements():
    out = torch.empty(0).as_strided((4, 0), (0, 1))
    assert fusewheel.add_out(torch.empty(4, 0), torch.empty(4, 0), out) is out


def test_functional_transform():
    def total(a):
        out = torch.zeros_like(a)
        torch.ops.fusewheel.add_out(a, a, out)
        return (out * out).sum()

    x = torch.randn(4)
    torch.testing.assert_close(torch.func.grad(total)(x), 8 * x)
    rows = torch.randn(3, 4)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(rows), 8 * rows)


def any_arguments(d: Draw):
    a, b = pair(d)
    shape = torch.broadcast_shapes(a.shape, b.shape)
    out = d.tensor(*shape, apart=True)
    kind = d.choice("its own", "its own", "an input", "between the inputs")
    if kind == "an input":
        a = out
    elif kind == "between the inputs" and out.dim():
        base = d.tensor(*shape[:-1], 2 * shape[-1], apart=True)
        a, out = base[..., ::2], base[..., 1::2]
    return a, b, out


FUZZ = {"add_out": any_arguments}
