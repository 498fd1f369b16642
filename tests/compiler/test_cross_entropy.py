"""Cross entropy in the spellings of models, and what resembles it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from nightly import NIGHTLY
from training import assert_step, wide

assert fusewheel
Tensor = torch.Tensor
aten = torch.ops.aten
CLASSES = 11
OPERATOR = torch.ops.fusewheel.cross_entropy.default


def _data(dtype: torch.dtype = torch.float32, rows: int = 6) -> tuple[Tensor, Tensor]:
    target = torch.randint(CLASSES, (2, rows))
    target[0, 1] = -100
    return (3 * torch.randn(2, rows, CLASSES)).to(dtype).requires_grad_(), target


def _flat(x: Tensor) -> Tensor:
    return x.view(-1, x.size(-1))


def _shifted(x: Tensor, t: Tensor) -> Tensor:
    x, t = wide(x)[..., :-1, :].contiguous(), t[..., 1:].contiguous()
    return F.cross_entropy(x.view(-1, CLASSES), t.view(-1))


def _padded(x: Tensor, t: Tensor) -> Tensor:
    t = F.pad(t, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(wide(x).view(-1, CLASSES), t.view(-1))


SPELLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "view": lambda x, t: F.cross_entropy(x.view(-1, x.size(-1)), t.view(-1)),
    "flatten": lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten()),
    "reshape": lambda x, t: F.cross_entropy(torch.reshape(x, (12, CLASSES)), t.reshape(12)),
    "float_view": lambda x, t: F.cross_entropy(wide(x).view(-1, CLASSES), t.view(-1)),
    "view_float": lambda x, t: F.cross_entropy(wide(x.flatten(0, 1)), t.flatten(0, 1)),
    "module": lambda x, t: torch.nn.CrossEntropyLoss(label_smoothing=0.1)(_flat(x), t.view(-1)),
    "sum": lambda x, t: F.cross_entropy(_flat(wide(x)), t.view(-1), reduction="sum") / 7,
    "none": lambda x, t: F.cross_entropy(_flat(wide(x)), t.view(-1), reduction="none"),
    "ignored": lambda x, t: F.cross_entropy(_flat(x), t.clamp(min=0).view(-1), ignore_index=4),
    "permute": lambda x, t: F.cross_entropy(x.permute(0, 2, 1), t),
    "transpose": lambda x, t: F.cross_entropy(wide(x).transpose(1, 2), t, reduction="none"),
    "movedim": lambda x, t: F.cross_entropy(torch.movedim(x, -1, 1), t, reduction="sum"),
    "four_dimensions": lambda x, t: F.cross_entropy(
        x.unflatten(1, (2, 3)).permute(0, 3, 1, 2), t.unflatten(1, (2, 3))
    ),
    "shifted": _shifted,
    "padded": _padded,
    "narrow": lambda x, t: F.cross_entropy(
        wide(x).narrow(1, 0, 5).reshape(-1, CLASSES), t.narrow(1, 1, 5).reshape(-1)
    ),
    "log_softmax": lambda x, t: F.nll_loss(F.log_softmax(_flat(x), dim=-1), t.view(-1)),
    "wide_log_softmax": lambda x, t: F.nll_loss(
        torch.log_softmax(x, -1, dtype=wide(x).dtype).view(-1, CLASSES), t.view(-1)
    ),
    "log_softmax_in_place_one": lambda x, t: F.nll_loss(x.transpose(1, 2).log_softmax(1), t),
    "log_softmax_transposed": lambda x, t: F.nll_loss(
        wide(x).log_softmax(-1).mT, t, reduction="sum"
    ),
    "aten": lambda x, t: aten.cross_entropy_loss(_flat(x), t.view(-1), None, 2, -100, 0.2),
    "aten_nll": lambda x, t: aten.nll_loss_nd(aten.log_softmax.int(_flat(x), 1), t.view(-1)),
}


# A change tries each in bfloat16, where casts count, and every third in float32 too.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(
            name,
            dtype,
            id=f"{name}-{dtype}",
            marks=NIGHTLY if dtype == torch.float32 and i % 3 else (),
        )
        for i, name in enumerate(SPELLINGS)
        for dtype in (torch.float32, torch.bfloat16)
    ],
)
def test_spellings(compare: Any, name: str, dtype: torch.dtype) -> None:
    compiled, recorder = compare.compile(SPELLINGS[name])
    assert_step(compiled, SPELLINGS[name], *_data(dtype))
    assert recorder.report().counts() == {"cross_entropy": 1}, recorder.report()
    # An upcast is left to the operator: its gradient is in the dtype of the model.
    (call,) = [node for node in compare.graphs[0].graph.nodes if node.target is OPERATOR]
    assert call.args[0].meta["example_value"].dtype == dtype


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_weights(compare: Any, reduction: str, smoothing: float) -> None:
    def loss(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(_flat(x), t.view(-1), w, None, -100, None, reduction, smoothing)

    for dtype in (torch.float32, torch.bfloat16):
        compiled, recorder = compare.compile(loss)
        assert_step(compiled, loss, *_data(dtype), (torch.rand(CLASSES) + 0.5).to(dtype))
        assert recorder.report().counts() == {"cross_entropy": 1}, recorder.report()


def test_class_weights_in_float32_keep_the_upcast(compare: Any) -> None:
    def loss(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(_flat(wide(x)), t.view(-1), w)

    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *_data(torch.bfloat16), torch.rand(CLASSES) + 0.5)
    assert recorder.report().counts() == {"cross_entropy": 1}, recorder.report()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_without_targets(compare: Any, weighted: bool) -> None:
    def loss(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(_flat(x), t.view(-1), w if weighted else None)

    (x, t), weight = _data(), torch.rand(CLASSES)
    compiled, _ = compare.compile(loss, "eager")
    assert compiled(x, torch.full_like(t, -100), weight).isnan()
    (gradient,) = torch.autograd.grad(compiled(x, torch.full_like(t, -100), weight), x)
    assert torch.equal(gradient, torch.zeros_like(x))


def test_dynamic_shapes(compare: Any) -> None:
    for name in ("shifted", "float_view", "transpose", "view_float"):
        compiled, recorder = compare.compile(SPELLINGS[name], dynamic=True)
        for rows in (6, 9, 4):
            assert_step(compiled, SPELLINGS[name], *_data(torch.bfloat16, rows))
        assert recorder.graphs <= 2 and recorder.report().count() == recorder.graphs


def test_inference(compare: Any) -> None:
    compiled, recorder = compare.compile(SPELLINGS["view"])
    with torch.no_grad():
        assert_step(compiled, SPELLINGS["view"], *_data())
    (call,) = [node for node in compare.graphs[0].graph.nodes if node.target is OPERATOR]
    assert call.args[-1] is False
    assert recorder.report().counts() == {"cross_entropy": 1}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(compare: Any, dtype: torch.dtype) -> None:
    """It runs the loss in float32, without a cast in the graph."""

    def loss(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype):
            logits = F.linear(x, x.detach()[0])
            found = F.cross_entropy(logits.view(-1, logits.size(-1)), t.view(-1).clamp(max=5))
        return found, logits

    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *_data())
    assert recorder.report().count("cross_entropy") == (dtype == torch.bfloat16)
    if dtype == torch.float16:
        assert any("autocast" in r.reason for r in recorder.report().refusals)


def test_upcast_inside_of_autocast(compare: Any) -> None:
    """What runs in another mode is not taken over; the loss itself is."""

    def loss(x: Tensor, t: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = wide(x * 2)
        return F.cross_entropy(_flat(y), t.view(-1))

    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *_data(torch.bfloat16))
    assert recorder.report().counts() == {"cross_entropy": 1}


def test_exported_program() -> None:
    class Loss(torch.nn.Module):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return _padded(x, t)

    x, t = _data(torch.bfloat16)
    program = torch.export.export(Loss(), (x, t))
    report = fusewheel.compiler.rewrite(program.graph_module)
    assert report.counts() == {"cross_entropy": 1}, report
    torch.testing.assert_close(program.module()(x, t), _padded(x, t))


LOOK_ALIKES: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "probabilities": (
        lambda x, t: F.cross_entropy(_flat(x), F.one_hot(t.clamp(0).view(-1), CLASSES).float()),
        "probabilities",
    ),
    "one_row": (lambda x, t: F.cross_entropy(x[0, 0], t[0, 0]), "single row"),
    "images": (lambda x, t: F.cross_entropy(x[:, :, :6], t.clamp(max=5)), "last dimension"),
    "other_order": (
        lambda x, t: F.cross_entropy(x.permute(1, 2, 0), t.t().contiguous()),
        "last dimension",
    ),
    "probabilities_of_nll": (
        lambda x, t: F.nll_loss(_flat(x).softmax(-1), t.view(-1)),
        "not taken of a log_softmax",
    ),
    "log_softmax_of_rows": (
        lambda x, t: F.nll_loss(_flat(x).log_softmax(0), t.view(-1)),
        "not taken of a log_softmax",
    ),
    "log_softmax_of_other_classes": (
        lambda x, t: F.nll_loss(x.log_softmax(1).flatten(0, 1), t.view(-1)),
        "not taken of a log_softmax",
    ),
    "scaled_logarithms": (
        lambda x, t: F.nll_loss(_flat(x).log_softmax(-1) * 2, t.view(-1)),
        "not taken of a log_softmax",
    ),
    "used_logarithms": (
        lambda x, t: (lambda p: (F.nll_loss(p, t.view(-1)), p.exp()))(_flat(x).log_softmax(-1)),
        "also used by",
    ),
    "written_logits": (
        lambda x, t: (lambda y: F.cross_entropy(y.add_(1), t.view(-1)) + y.add_(1).mean())(
            _flat(x).detach() * 1
        ),
        "",
    ),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alikes(compare: Any, name: str) -> None:
    function, reason = LOOK_ALIKES[name]
    report = compare(function, *_data())
    if name == "written_logits":  # before and after, not between
        assert report.counts() == {"cross_entropy": 1}, report
        return
    assert report.counts() == {}, report
    assert [reason in r.reason for r in report.refusals] == [True], report


def test_targets_of_another_dtype(compare: Any) -> None:
    """Dynamo lets pass what PyTorch then refuses itself."""
    compiled, recorder = compare.compile(SPELLINGS["view"], "eager")
    x, t = _data()
    with pytest.raises(RuntimeError, match="Int"):
        compiled(x, t.int())
    assert [r.reason for r in recorder.report().refusals] == ["the targets are torch.int32"]


def test_precisions_that_are_kept(compare: Any) -> None:
    """What the operator would compute in less than the model does stays as it is."""
    for narrow, cast in ((torch.float16, torch.float32), (torch.float32, torch.float64)):
        x, t = _data(narrow)

        def loss(x: Tensor, t: Tensor, dtype: torch.dtype = cast) -> Tensor:
            return F.cross_entropy(_flat(x.to(dtype)), t.view(-1))

        exact = functools.partial(loss, dtype=torch.float64)
        report = compare(loss, x, t, exact=exact)
        assert report.counts() == {"cross_entropy": 1}
        (call,) = [n for n in compare.graphs.pop().graph.nodes if n.target is OPERATOR]
        assert call.args[0].meta["example_value"].dtype == cast


def test_rows_that_are_not_the_same(compare: Any) -> None:
    """A reshape that moves values across rows, and a slice of classes."""

    def mixed(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(wide(x).view(-1, 6), F.pad(t.view(-1), (0, 10)).clamp(max=5))

    def cut(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(wide(x)[..., :7].reshape(-1, 7), t.view(-1).clamp(max=6))

    for function in (mixed, cut):
        compiled, recorder = compare.compile(function)
        assert_step(compiled, function, *_data(torch.bfloat16))
        assert recorder.report().counts() == {"cross_entropy": 1}


def test_other_uses_keep_their_values(compare: Any) -> None:
    def loss(x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        y = wide(x * 2)
        rows = _flat(y)
        return F.cross_entropy(rows, t.view(-1)), y, rows.argmax(-1)

    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *_data(torch.bfloat16))
    assert recorder.report().counts() == {"cross_entropy": 1}


def test_write_between_upcast_and_loss(compare: Any) -> None:
    def loss(x: Tensor, t: Tensor) -> Tensor:
        x = x * 1
        y = wide(x)
        x.add_(torch.arange(CLASSES, dtype=x.dtype))
        return F.cross_entropy(_flat(y), t.view(-1)) + x.mean()

    compiled, recorder = compare.compile(loss, "eager")
    assert_step(compiled, loss, *_data(torch.bfloat16))
    assert recorder.report().counts() == {}
    assert "writes in place" in recorder.report().refusals[0].reason


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_write_over_the_loss(compare: Any, reduction: str) -> None:
    def loss(x: Tensor, t: Tensor) -> Tensor:
        found = F.cross_entropy(_flat(x), t.view(-1), reduction=reduction)
        found *= 2
        found += x.square().mean()
        return found

    for inner in ("eager", "aot_eager"):
        compiled, recorder = compare.compile(loss, inner)
        assert_step(compiled, loss, *_data())
        assert recorder.report().counts() == {"cross_entropy": 1}
