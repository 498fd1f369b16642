import math

import fusewheel
import pytest
import torch
from fuzz.draw import Draw
from fuzz.shapes import row_values
from nightly import IN_TRAINING
from oracle import assert_as_good_as_eager, slow
from torch.nn import functional


def data(rows: int, classes: int, dtype: torch.dtype = torch.float32, scale: float = 1.0):
    generator = torch.Generator().manual_seed(rows + classes)
    logits = torch.randn(rows, classes, generator=generator) * scale
    target = torch.randint(classes, (rows,), generator=generator)
    weight = torch.rand(classes, generator=generator) + 0.5
    return logits.to(dtype), target, weight.to(dtype)


def with_gradient(function, logits, *arguments, **settings):
    leaf = logits.detach().requires_grad_()
    loss = function(leaf, *arguments, **settings)
    return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]


def assert_like_torch(logits, target, weight=None, **settings):
    got = with_gradient(fusewheel.cross_entropy, logits, target, weight, **settings)
    eager = with_gradient(functional.cross_entropy, logits, target, weight, **settings)
    wide = None if weight is None else weight.double()
    exact = with_gradient(functional.cross_entropy, logits.double(), target, wide, **settings)
    for what, triple in zip(("loss", "gradient"), zip(got, eager, exact, strict=True), strict=True):
        assert_as_good_as_eager(*triple, what=f"{what}, {settings}")


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_like_torch(dtype: torch.dtype, reduction: str):
    logits, target, weight = data(7, 507, dtype, scale=3.0)
    target[[2, 5]] = -100
    for smoothing in (0.0, 0.1, 1.0):
        for gains in (None, weight):
            assert_like_torch(logits, target, gains, reduction=reduction, label_smoothing=smoothing)
    assert_like_torch(logits, target.clamp(min=0), weight, reduction=reduction, ignore_index=3)


def test_cap_and_z_loss_are_their_formulas():
    logits, target, _ = data(9, 507, torch.float64, scale=40.0)

    def formula(x):
        z = 30.0 * torch.tanh(x / 30.0)
        return functional.cross_entropy(z, target) + 1e-3 * z.logsumexp(-1).square().mean()

    got = with_gradient(fusewheel.cross_entropy, logits, target, z_loss=1e-3, softcap=30.0)
    torch.testing.assert_close(got, with_gradient(formula, logits))


@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_without_smoothing_a_class_weight_counts_where_its_class_is_the_target(softcap: float):
    """As in PyTorch: of a class without a weight, NaN, the other rows know nothing."""
    operator = {o.name: o for o in fusewheel.ops.operators()}["cross_entropy"]
    logits, target, weight = data(6, 40)
    target[2], target[3:] = 7, target[3:] % 7
    target[:2] = 1
    unknown = weight.clone()
    unknown[7] = math.nan
    for function in (operator.overload, operator.reference):
        known, got = (
            function(logits, target, w, -100, 0.0, 1e-3, softcap, True) for w in (weight, unknown)
        )
        for a, b in zip(known, got, strict=True):
            assert torch.equal(a[target != 7], b[target != 7])
        assert got[0][2].isnan() and got[2][2].isnan().all()


@pytest.mark.parametrize("ignored", [-100, 3])
def test_a_mean_reads_no_weight_of_an_ignored_row(ignored: int):
    logits, target = torch.randn(4, 5), torch.tensor([1, ignored, 2, 1])
    weight = torch.tensor([math.nan, 0.5, 2.0, math.nan, math.nan])
    own, theirs = (
        function(logits, target, weight, ignore_index=ignored)
        for function in (fusewheel.cross_entropy, functional.cross_entropy)
    )
    assert theirs.isfinite()
    torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize("classes", [1, 2, 15, 16, 17, 127, 128, 129, 50256, 50257])
def test_any_number_of_classes(classes: int):
    assert_like_torch(*data(4, classes)[:2])


def test_all_rows_ignored():
    logits = torch.full((3, 5), math.nan)  # not even read
    target = torch.full((3,), -100)
    for reduction, want in (("mean", math.nan), ("sum", 0.0), ("none", [0.0] * 3)):
        loss, _ = with_gradient(fusewheel.cross_entropy, logits, target, reduction=reduction)
        torch.testing.assert_close(loss, torch.tensor(want), equal_nan=True)
    gradient = with_gradient(fusewheel.cross_entropy, logits, target, reduction="sum")[1]
    assert torch.equal(gradient, torch.zeros(3, 5))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_large_and_infinite_logits(smoothing: float):
    inf, low = math.inf, torch.finfo(torch.float32).min
    logits = torch.tensor(
        [
            [1e4, -1e4, 0.0, 1e4],
            [1e4 + 1, 1e4, 1e4 - 1, 1e4],
            [-1e4, -1e4 - 1, -1e4, -1e4],
            [3e38, -3e38, 0.0, 1.0],
            [low, low, low, low],
            [low, 0.0, low, low],
            [0.0, -inf, 1.0, 2.0],
            [-inf, 0.0, 1.0, 2.0],
            [0.0, inf, 1.0, 2.0],
            [-inf, -inf, -inf, -inf],
        ]
    )
    target = torch.tensor([1, 0, 3, 1, 2, 1, 2, 0, 0, 0])
    for repeat in (1, 100):
        wide = logits.repeat_interleave(repeat, 1)
        settings = {"reduction": "none", "label_smoothing": smoothing}
        got = with_gradient(fusewheel.cross_entropy, wide, target * repeat, **settings)
        want = with_gradient(functional.cross_entropy, wide.double(), target * repeat, **settings)
        # Smoothing spreads 3e38 over all classes, which float32 cannot add up.
        rows = [i for i in range(10) if smoothing == 0 or i not in (3, 4, 5)]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a[rows], b[rows].float(), equal_nan=True)


def test_nan_stays_in_its_row():
    logits, target, _ = data(4, 507)
    logits[1, 77] = math.nan
    loss, gradient = with_gradient(fusewheel.cross_entropy, logits, target, reduction="none")
    assert loss.isnan().tolist() == [False, True, False, False]
    assert gradient.isnan().all(-1).tolist() == [False, True, False, False]
    assert gradient.isnan().any(-1).tolist() == [False, True, False, False]


def test_a_target_that_is_no_class():
    logits, target, _ = data(5, 7)
    emulated = any(b.facts.get("cuda") == "emulated" for b in fusewheel.backends())
    for wrong in (7, -1, 2**40, -(2**40)):
        target[3] = wrong
        if emulated:
            loss, gradient = with_gradient(
                fusewheel.cross_entropy, logits, target, reduction="none"
            )
            assert loss.isnan().tolist() == [i == 3 for i in range(5)]
            assert gradient.isnan().all(-1).tolist() == [i == 3 for i in range(5)]
            continue
        with pytest.raises(RuntimeError, match=rf"7 classes.*got {wrong} in row 3"):
            fusewheel.cross_entropy(logits, target)


def test_the_layout_of_the_logits_does_not_matter(dtype: torch.dtype):
    logits, target, _ = data(8, 33, dtype)
    want = with_gradient(fusewheel.cross_entropy, logits, target)
    padded = torch.full((8, 48), math.nan, dtype=dtype)
    padded[:, 3:36] = logits
    for view in (padded[:, 3:36], logits.t().contiguous().t()):
        got = with_gradient(fusewheel.cross_entropy, view, target)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_the_capped_logit_of_a_single_class_is_its_logsumexp():
    """Hence tanh is seen through it: within two units in the last place (the bound of
    CUDA's tanhf too) and one for the scaling and its sum, specials right.
    """
    count = 10_000 if slow() else 1_000_000
    x = torch.cat([torch.randn(count) * 10.0**e for e in (-6, -3, 0, 1)])
    specials = [math.inf, -math.inf, math.nan, 0.0, 1e-45, -1e-45, 1e-39, 3e38, -3e38]
    x = torch.cat([x, torch.tensor(specials)]).unsqueeze(-1)
    target = torch.zeros(len(x), dtype=torch.int64)
    call = torch.ops.fusewheel.cross_entropy
    got = call(x, target, None, -100, 0.0, 0.0, 1.0, False)[1]
    eager, exact = x.squeeze(-1).tanh(), x.squeeze(-1).double().tanh()
    assert_as_good_as_eager(got[-9:], eager[-9:], exact[-9:])
    got, exact = got[:-9].double(), exact[:-9]
    spacing = torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=2.0**-126)))) * 2.0**-23
    assert ((got - exact).abs() / spacing).max() < 3


@pytest.mark.parametrize("softcap", [0.0, 30.0])
def test_a_single_class_has_no_gradient(dtype: torch.dtype, softcap: float):
    target = torch.zeros(40, dtype=torch.int64)
    logits = torch.linspace(-30, 30, 40, dtype=dtype)[:, None]
    for smoothing in (0.0, 0.1, 0.3, 0.7, 1.0):
        settings = (None, -100, smoothing, 0.0, softcap, True)
        assert not torch.ops.fusewheel.cross_entropy(logits, target, *settings)[2].any()


def test_second_derivatives_through_the_public_function():
    logits, target, weight = data(4, 6, torch.float64)
    target[1] = -100

    def loss(x, w):
        return fusewheel.cross_entropy(x, target, w, label_smoothing=0.1, z_loss=0.01, softcap=2.0)

    inputs = (logits.requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


@pytest.mark.parametrize("grad", IN_TRAINING)
def test_compiles_in_one_graph(grad: bool):
    logits, target, _ = data(16, 507)

    def loss(x, t):
        return fusewheel.cross_entropy(x * 2, t, label_smoothing=0.1)

    compiled = torch.compile(loss, fullgraph=True)
    logits.requires_grad_(grad)
    torch.testing.assert_close(compiled(logits, target), loss(logits, target))
    if grad:
        want = torch.autograd.grad(loss(logits, target), logits)
        torch.testing.assert_close(torch.autograd.grad(compiled(logits, target), logits), want)


def test_no_gradient_is_computed_that_nobody_wants():
    call = torch.ops.fusewheel.cross_entropy
    logits, target, _ = data(4, 5)
    assert call(logits, target, None, -100, 0.0, 0.0, 0.0, False)[2].shape == (0,)
    leaf = logits.requires_grad_()
    loss = call(leaf, target, None, -100, 0.0, 0.0, 0.0, False)[0]
    got = torch.autograd.grad(loss.sum(), leaf)
    want = torch.autograd.grad(functional.cross_entropy(leaf, target, reduction="sum"), leaf)
    torch.testing.assert_close(got, want)


def test_an_ignored_row_has_no_gradient_whatever_its_loss_counts_for(dtype: torch.dtype):
    logits, target, _ = data(4, 7, dtype)
    target[1] = -100
    leaf = logits.requires_grad_()
    losses = fusewheel.cross_entropy(leaf, target, reduction="none")
    counts = torch.tensor([1.0, math.nan, -2.0, 0.5], dtype=dtype)
    (grad,) = torch.autograd.grad(losses, leaf, counts)
    (want,) = torch.autograd.grad(
        functional.cross_entropy(leaf, target, reduction="none"), leaf, counts
    )
    assert not grad[1].any() and not want[1].any()
    torch.testing.assert_close(grad, want)


def test_a_gradient_of_the_operator_is_one_of_the_weighted_losses(dtype: torch.dtype):
    """With the eighth argument it comes with the losses, as saved programs have it."""
    logits, target, _ = data(5, 300, dtype)
    counts = torch.randn(5, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    call = torch.ops.fusewheel.cross_entropy
    got = call(logits, target, None, -100, 0.1, 0.0, 3.0, True, counts)[2]
    leaf = logits.requires_grad_()
    losses = call(leaf, target, None, -100, 0.1, 0.0, 3.0, False)[0]
    assert torch.equal(got, torch.autograd.grad(losses, leaf, counts)[0])
    unit = call(leaf, target, None, -100, 0.1, 0.0, 3.0, True)[2]
    again = torch.ops.fusewheel.cross_entropy_backward(counts, unit)
    torch.testing.assert_close(again, got)


def test_probabilities_run_pytorchs_own_function():
    logits, target = torch.randn(4, 5), torch.softmax(torch.randn(4, 5), -1)
    got = fusewheel.cross_entropy(logits, target, label_smoothing=0.1)
    assert torch.equal(got, functional.cross_entropy(logits, target, label_smoothing=0.1))
    for settings in ({"z_loss": 0.1}, {"softcap": 1.0}):
        with pytest.raises(ValueError, match="must be 0 where target holds probabilities"):
            fusewheel.cross_entropy(logits, target, **settings)


def test_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="reduction must be 'none', 'mean' or 'sum', got 'max'"):
        fusewheel.cross_entropy(torch.ones(2, 3), torch.zeros(2).long(), reduction="max")


def any_arguments(d: Draw):
    rows, classes = d.size(most=40), d.size(1)
    ignored = d.choice(-100, -1, 0)
    target = d.integers(rows, least=0, most=classes - 1, dtype=torch.int64)
    target = d.lay(torch.where(target % d.choice(2, 3, 1000) == 1, ignored, target))
    options = d.choice(0.0, 0.1, 1.0), d.choice(0.0, 1e-3, -0.1), d.choice(0.0, 3.0, 30.0)
    grad = row_values(d, rows) if d.flag() else None
    return d.tensor(rows, classes), target, d.optional(classes), ignored, *options, d.flag(), grad


def any_backward_arguments(d: Draw):
    rows, classes = d.size(most=40), d.size()
    return row_values(d, rows), d.tensor(rows, classes)


FUZZ = {"cross_entropy": any_arguments, "cross_entropy_backward": any_backward_arguments}
