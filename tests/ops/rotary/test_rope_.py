import fusewheel
import pytest
import torch
from fusewheel.dispatch.operator import Make
from fuzz.draw import Draw
from ops.rotary.test_rope import any_tables
from torch.profiler import ProfilerActivity, profile


def inputs(dtype=torch.float32):
    make = Make(dtype)
    return make(2, 9, 6, 34).transpose(1, 2), make(9, 16), make(9, 16)


@pytest.mark.parametrize("interleaved", [False, True])
def test_has_the_bits_of_rope(dtype, interleaved):
    x, cos, sin = inputs(dtype)
    want, _ = fusewheel.rope(x, x, cos, sin, interleaved)
    gaps = Make(dtype).strided(*x.shape)
    gaps.copy_(x)
    for tensor in (x, gaps):
        assert fusewheel.rope_(tensor, cos, sin, interleaved) is tensor
        assert torch.equal(tensor, want)


def test_no_memory_is_needed():
    x, cos, sin = inputs()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        fusewheel.rope_(x, cos, sin)
    assert not any(event.self_cpu_memory_usage for event in profiler.events())


@pytest.mark.parametrize("tables", [False, True])
def test_trains_through_a_view_of_a_projection(tables):
    """The view is written, not a copy of it; `tables` are learned, or not."""
    results = []
    for rotate in (fusewheel.rope_, lambda x, *rest: fusewheel.rope(x, x, *rest)[0]):
        x, cos, sin = (t.requires_grad_() for t in inputs(torch.float64))
        leaves = [x, cos, sin] if tables else [x]
        projection = (2 * x).transpose(1, 2)
        rest = (cos, sin) if tables else (cos.detach(), sin.detach())
        y = rotate(projection.transpose(1, 2), *rest)
        results.append(torch.autograd.grad((y * y * y).sum(), leaves))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_the_version_counter_goes_up_and_autograd_notices():
    x, cos, sin = inputs()
    x.requires_grad_()
    doubled = x * 2
    square = doubled * doubled
    before = doubled._version
    fusewheel.rope_(doubled, cos, sin)
    assert doubled._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


def test_a_leaf_that_requires_grad_is_refused():
    x, cos, sin = inputs()
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        fusewheel.rope_(x, cos, sin)


def test_any_strides_will_do_where_there_are_no_elements():
    x = torch.empty(0).as_strided((1, 4, 0, 2), (0, 0, 2, 1))
    cos = torch.empty(1, 0, 2)
    assert fusewheel.rope_(x, cos, cos) is x


def any_arguments(d: Draw):
    batch, length, size = d.size(most=3), d.size(most=17), d.size(most=129)
    x = d.tensor(batch, d.size(most=5), length, size, apart=True)
    return x, *any_tables(d, batch, length, size)


FUZZ = {"rope_": any_arguments}
