import itertools
import json
import math
import subprocess
import sys

import fusewheel
import pytest
import torch
from fuzz.draw import Draw
from fuzz.shapes import row_values
from neighbours import assert_call_as_good_as_eager
from nightly import IN_TRAINING
from oracle import emulated
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

REDUCTIONS = ("none", "mean", "sum")
OPERATOR = {o.name: o for o in fusewheel.ops.operators()}["linear_cross_entropy_backward"]


def data(rows: int, features: int, classes: int, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(rows + classes)
    x = torch.randn(rows, features, generator=generator)
    weight = torch.randn(classes, features, generator=generator) / features**0.5 * 2
    bias = torch.randn(classes, generator=generator)
    gains = torch.rand(classes, generator=generator) + 0.5
    target = torch.randint(classes, (rows,), generator=generator)
    return x.to(dtype), weight.to(dtype), target, bias.to(dtype), gains.to(dtype)


def eager(x, weight, target, bias=None, class_weight=None, softcap=0.0, z_loss=0.0, **settings):
    """PyTorch's own functions; in float16, where its loss overflows, with a float32 loss."""
    logits = functional.linear(x, weight, bias).flatten(0, -2)
    if x.dtype == torch.float16:
        logits = logits.float()
        class_weight = None if class_weight is None else class_weight.float()
    if softcap > 0:
        logits = softcap * torch.tanh(logits / softcap)
    flat = target.flatten()
    loss = functional.cross_entropy(logits, flat, class_weight, **settings)
    if z_loss != 0:
        kept = flat != settings.get("ignore_index", -100)
        own = torch.ones_like(kept) if class_weight is None else class_weight[flat.clamp(min=0)]
        squares = torch.where(kept, logits.logsumexp(-1).square(), 0.0) * z_loss
        reduction = settings.get("reduction", "mean")
        divisor = (own * kept).sum() if reduction == "mean" else 1
        loss = loss + (squares if reduction == "none" else squares.sum() / divisor)
    loss = loss.to(x.dtype)
    return loss.view(target.shape) if settings.get("reduction") == "none" else loss


def with_gradients(function, x, weight, target, bias=None, class_weight=None, **settings):
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
    loss = function(*leaves[:2], target, *(leaves[2:] or [None]), class_weight, **settings)
    seed = torch.linspace(1, 2, loss.numel(), dtype=torch.float64).view(loss.shape)
    return loss.detach(), *torch.autograd.grad(loss, leaves, seed.to(loss.dtype))


def assert_like_torch(*tensors, **settings):
    def compute(function, arguments):
        return with_gradients(function, *arguments, **settings)

    functions = fusewheel.linear_cross_entropy, eager
    assert_call_as_good_as_eager(compute, *functions, tensors, f"{settings}, result")


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_like_torch(dtype: torch.dtype, reduction: str):
    x, weight, target, bias, gains = data(64, 96, 507, dtype)
    target[[2, 5]] = -100
    assert_like_torch(x, weight, target, reduction=reduction)
    for smoothing in (0.1, 1.0):
        settings = {"reduction": reduction, "label_smoothing": smoothing}
        assert_like_torch(x, weight, target, bias, gains, **settings)
    assert_like_torch(x, weight, target.clamp(min=0), bias, reduction=reduction, ignore_index=3)
    assert_like_torch(x, weight, target, bias, softcap=2.0, z_loss=0.01, reduction=reduction)
    assert_like_torch(x, weight, target, None, gains, softcap=5.0, reduction=reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_many_chunks(dtype: torch.dtype, reduction: str):
    x, weight, target, bias, gains = data(2500, 40, 33, dtype)
    target[1200:1600] = -100
    assert_like_torch(x, weight, target, bias, gains, reduction=reduction, label_smoothing=0.1)


def test_many_classes(dtype: torch.dtype):
    # Slices of 4096 classes and the rest; chunks of 512 rows and the rest.
    assert_like_torch(*data(520, 24, 5000, dtype))


def test_leading_dimensions():
    x, weight, target, bias, _ = data(24, 16, 50)
    for shape in ((2, 3, 4), (24,), (24, 1)):
        for reduction in REDUCTIONS:
            inputs = (x.view(*shape, 16), weight, target.view(shape), bias)
            assert_like_torch(*inputs, reduction=reduction)
    row = fusewheel.linear_cross_entropy(x[0], weight, target[0], reduction="none")
    torch.testing.assert_close(row, functional.cross_entropy(x[0] @ weight.T, target[0]))
    for shape in ((4, 3, 2), (24,), (2, 3)):
        with pytest.raises(RuntimeError, match=r"target must have shape \[2, 3, 4\].*got \["):
            fusewheel.linear_cross_entropy(x.view(2, 3, 4, 16), weight, torch.zeros(shape).long())


def test_all_rows_ignored_or_none_there():
    x, weight, target, bias, _ = data(3, 4, 5)
    for rows in (3, 0):
        inputs = (x[:rows], weight, torch.full_like(target, -100)[:rows], bias)
        for reduction, want in (("mean", math.nan), ("sum", 0.0), ("none", [0.0] * rows)):
            got = with_gradients(fusewheel.linear_cross_entropy, *inputs, reduction=reduction)
            torch.testing.assert_close(got[0], torch.tensor(want), equal_nan=True)
            assert all(torch.equal(g, torch.zeros_like(g)) for g in got[1:]), reduction


def test_a_single_class_has_no_loss():
    loss, *gradients = with_gradients(fusewheel.linear_cross_entropy, *data(3, 4, 1)[:4])
    assert loss == 0 and not any(g.any() for g in gradients)


def test_a_single_class_has_no_gradient_whatever_its_losses_count_for(dtype: torch.dtype):
    x, weight = torch.randn(40, 3).to(dtype), torch.ones(1, 3, dtype=dtype)
    counts = torch.linspace(-55, 55, 40).to(torch.promote_types(dtype, torch.float32))
    settings = (None, None, -100, 0.1, 0.0, 3.0, True, True, False)
    target = torch.zeros(40, dtype=torch.int64)
    backward = torch.ops.fusewheel.linear_cross_entropy_backward
    for grad in backward(counts, x, weight, target, *settings):
        assert not grad.any()


def test_what_an_ignored_row_counts_for_does_not_matter():
    x, weight, target = torch.randn(2, 3), torch.randn(4, 3), torch.tensor([1, -100])
    counts, settings = torch.tensor([1.0, math.nan]), (None, None, -100, 0.0, 0.0, 0.0)
    for function in (OPERATOR.overload, OPERATOR.reference):
        for grad in function(counts, x, weight, target, *settings, True, True, True):
            assert grad.isfinite().all()


def test_a_target_that_is_no_class():
    x, weight, target, _, _ = data(5, 4, 7)
    for wrong in (7, -1, 2**40, -(2**40)):
        target[3] = wrong
        if emulated():
            got = with_gradients(
                fusewheel.linear_cross_entropy, x, weight, target, reduction="none"
            )
            for of_row in got[:2]:
                assert of_row.reshape(5, -1).isnan().all(-1).tolist() == [i == 3 for i in range(5)]
            continue
        with pytest.raises(RuntimeError, match=rf"7 classes.*got {wrong} in row 3"):
            fusewheel.linear_cross_entropy(x, weight, target)


def test_layouts_do_not_matter(dtype: torch.dtype):
    x, weight, target, _, _ = data(40, 24, 48, dtype)
    for a, b in (
        (x.t().contiguous().t(), weight.t().contiguous().t()),
        (spread(x), spread(weight)),
    ):
        assert not a.is_contiguous() and not b.is_contiguous()
        assert_like_torch(a, b, target)
    repeated = x[:1].expand(40, 24)
    assert_like_torch(repeated, weight, target)


def spread(matrix: Tensor) -> Tensor:
    """The same numbers with NaN between them."""
    wide = torch.full([2 * size for size in matrix.shape], math.nan, dtype=matrix.dtype)
    wide[::2, ::2] = matrix
    return wide[::2, ::2]


def test_float16_holds_the_gradient_of_a_mean():
    """That of the sum, from which it is made, is more than float16 holds."""
    x = torch.full((4096, 1), 100.0, dtype=torch.float16)
    weight = torch.zeros(2, 1, dtype=torch.float16, requires_grad=True)
    fusewheel.linear_cross_entropy(x, weight, torch.zeros(4096).long()).backward()
    torch.testing.assert_close(weight.grad.float(), torch.tensor([[-50.0], [50.0]]))


def test_what_needs_no_gradient_gets_none():
    x, weight, target, bias, _ = data(6, 4, 5)
    call = torch.ops.fusewheel.linear_cross_entropy
    options = (None, -100, 0.0, 0.0, 0.0)
    outputs = call(x, weight, target, bias, *options, True, False, True, False)
    assert [list(o.shape) for o in outputs] == [[], [0], [5, 4], [0]]
    # A graph is still right: the gradients come in the backward pass then.
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    loss = call(x, weight, target, bias, *options, True, False, False, False)[0]
    got = torch.autograd.grad(loss, leaves)
    want = torch.autograd.grad(eager(x, weight, target, bias, reduction="sum"), leaves)
    torch.testing.assert_close(got, want)


def test_the_backward_pass_may_run_again():
    x, weight, target, bias, _ = data(6, 4, 5)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    loss = fusewheel.linear_cross_entropy(x, weight, target, bias)
    want = torch.autograd.grad(loss * 3, leaves, retain_graph=True)
    for last in (False, True):
        got = torch.autograd.grad(loss * 3, leaves, retain_graph=not last)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert not any(g.requires_grad for g in got)
    x.grad = None
    for _ in range(2):
        fusewheel.linear_cross_entropy(x, weight, target, bias).backward()
    torch.testing.assert_close(x.grad, want[0] * 2 / 3)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_second_derivatives_through_the_public_function(reduction: str):
    x, weight, target, bias, gains = data(4, 3, 5, torch.float64)
    target[1] = -100

    def loss(x, w, b, g):
        return fusewheel.linear_cross_entropy(x, w, target, b, g, -100, reduction, 0.1, 0.01, 2.0)

    inputs = tuple(t.requires_grad_() for t in (x, weight, bias, gains))
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


def test_torch_func_and_batched_gradients():
    x, weight, target, _, _ = data(6, 4, 5)

    def loss(w):
        return fusewheel.linear_cross_entropy(x, w, target, label_smoothing=0.1)

    def want(w):
        return eager(x, w, target, label_smoothing=0.1)

    torch.testing.assert_close(torch.func.grad(loss)(weight), torch.func.grad(want)(weight))
    leaf = weight.requires_grad_()
    seeds = torch.tensor([1.0, 2.0])
    for function in (loss, want):
        got = torch.autograd.grad(function(leaf), leaf, seeds, is_grads_batched=True)[0]
        torch.testing.assert_close(got, seeds.view(2, 1, 1) * torch.func.grad(want)(weight))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("grad", IN_TRAINING)
def test_compiles_in_one_graph(grad: bool, reduction: str):
    x, weight, target, bias, _ = data(16, 8, 50)

    def loss(x, w, t, b):
        return fusewheel.linear_cross_entropy(x * 2, w, t, b, None, -100, reduction, 0.1)

    leaves = [t.requires_grad_(grad) for t in (x, weight, bias)]
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(loss, fullgraph=True, backend=counter)
    torch.testing.assert_close(compiled(x, weight, target, bias), loss(x, weight, target, bias))
    assert counter.frame_count == 1
    if grad:
        want = torch.autograd.grad(loss(x, weight, target, bias).sum(), leaves)
        got = torch.autograd.grad(compiled(x, weight, target, bias).sum(), leaves)
        torch.testing.assert_close(got, want)


# Each case in a copy of one process, which has imported everything.
PROGRAM = """
import json, os, sys, torch, fusewheel
from torch.nn import functional

def peak():
    with open("/proc/self/status") as status:
        return next(int(l.split()[1]) * 1024 for l in status if l.startswith("VmHWM"))

def fused(x, weight, target, reduction):
    return fusewheel.linear_cross_entropy(x, weight, target, reduction=reduction)

def eager(x, weight, target, reduction):
    return functional.cross_entropy(functional.linear(x, weight), target, reduction=reduction)

def step(function, dtype, reduction, rows, features, classes):
    x = torch.randn(rows, features).to(dtype).requires_grad_()
    weight = torch.randn(classes, features).to(dtype).requires_grad_()
    before = peak()
    function(x, weight, torch.zeros(rows, dtype=torch.int64), reduction).sum().backward()
    return peak() - before

for function, name, reduction in json.loads(sys.argv[1]):
    if os.fork():
        assert os.wait()[1] == 0
        continue
    case = globals()[function], getattr(torch, name), reduction
    # Whatever is allocated once, on first use; a library of products writes code for large ones.
    step(*case, 256, 32, 1024)
    print(step(*case, 2048, 32, 8192), flush=True)
    os._exit(0)
"""
NAMES, SUMMED = ("float32", "bfloat16"), ("mean", "none")
# That this is a measure of memory shows where eager takes it.
MEASURED = "eager", "float32", "mean"


@pytest.fixture(scope="module")
def grown() -> dict[tuple[str, ...], int]:
    """Bytes by function, dtype and reduction."""
    cases = [*itertools.product(("fused",), NAMES, SUMMED), MEASURED]
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(cases, map(int, done.stdout.split()), strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("reduction", SUMMED)
@pytest.mark.parametrize("name", NAMES)
def test_peak_memory(grown: dict[tuple[str, ...], int], name: str, reduction: str):
    # Never all logits at once, where eager has them three times. No closer: what the C library's
    # allocator keeps, and the code that is paged in, differ from machine to machine.
    logits = 2048 * 8192
    assert grown["fused", name, reduction] < logits * getattr(torch, name).itemsize, grown
    assert grown[MEASURED] > 2 * logits * 4, grown


def test_unknown_reduction_is_refused():
    x, weight, target, _, _ = data(2, 3, 4)
    with pytest.raises(ValueError, match="reduction must be 'none', 'mean' or 'sum', got 'max'"):
        fusewheel.linear_cross_entropy(x, weight, target, reduction="max")


def any_layer(d: Draw):
    rows, features, classes = d.size(most=65), d.size(most=129), d.size(1, 129)
    ignored = d.choice(-100, -1, 0)
    target = d.integers(rows, least=0, most=classes - 1, dtype=torch.int64)
    target = d.lay(torch.where(target % d.choice(2, 3, 1000) == 1, ignored, target))
    options = d.choice(0.0, 0.1, 1.0), d.choice(0.0, 1e-3, -0.1), d.choice(0.0, 3.0, 30.0)
    layer = d.tensor(rows, features), d.tensor(classes, features, scale=0.3), target
    return *layer, d.optional(classes), d.optional(classes), ignored, *options


def any_needs(d: Draw, layer):
    return d.flag(), d.flag(), d.flag() and layer[3] is not None


def any_arguments(d: Draw):
    layer = any_layer(d)
    return *layer, d.flag(), *any_needs(d, layer)


def any_backward_arguments(d: Draw):
    layer = any_layer(d)
    return row_values(d, len(layer[0])), *layer, *any_needs(d, layer)


FUZZ = {
    "linear_cross_entropy": any_arguments,
    "linear_cross_entropy_backward": any_backward_arguments,
}
