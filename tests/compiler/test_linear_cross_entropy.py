"""The last layer with its loss: where the logits need not exist, and where they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from training import assert_step, wide

assert fusewheel
Tensor = torch.Tensor
CLASSES = 67
OPERATOR = torch.ops.fusewheel.linear_cross_entropy.default
DONE = {"linear_cross_entropy": 1}
INSTEAD = {"cross_entropy": 1}


def _data(dtype: torch.dtype = torch.float32, rows: int = 6) -> tuple[Tensor, ...]:
    target = torch.randint(CLASSES, (2, rows))
    target[0, 1] = -100
    x, w, b = torch.randn(2, rows, 8), torch.randn(CLASSES, 8), torch.randn(CLASSES)
    return *(a.to(dtype).requires_grad_() for a in (x, w, b)), target


def _flat(x: Tensor) -> Tensor:
    return x.view(-1, x.size(-1))


def _shifted(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    y = wide(F.linear(x, w))[..., :-1, :].contiguous()
    return F.cross_entropy(y.view(-1, CLASSES), t[..., 1:].contiguous().view(-1))


def _shifted_first(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    y = F.linear(x, w, b)[:, :-1].flatten(0, 1)
    return F.cross_entropy(wide(y), t[:, 1:].flatten(), reduction="sum")


def _shifted_and_transposed(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w)[:, :-1].transpose(1, 2), t[:, 1:])


def _padded(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    t = F.pad(t, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(wide(F.linear(x, w)).view(-1, CLASSES), t.view(-1))


def _log_softmax(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(wide(_flat(F.linear(x, w))), -1), t.view(-1))


def _capped(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    y = 5.0 * torch.tanh(wide(F.linear(x, w)) / 5.0)
    return F.cross_entropy(_flat(y), t.view(-1), ignore_index=-100)


def _ce(y: Tensor, t: Tensor, **settings: Any) -> Tensor:
    return F.cross_entropy(y.flatten(0, -2), t.flatten(), **settings)


SPELLINGS: dict[str, Callable[..., Tensor]] = {
    "linear": lambda x, w, b, t: F.cross_entropy(_flat(F.linear(x, w)), t.view(-1)),
    "bias": lambda x, w, b, t: _ce(F.linear(x, w, b), t),
    "upcast": lambda x, w, b, t: _ce(wide(F.linear(x, w, b)), t),
    "sum": lambda x, w, b, t: _ce(wide(F.linear(x, w)), t, reduction="sum") / (t >= 0).sum(),
    "smoothing": lambda x, w, b, t: _ce(F.linear(x, w), t, label_smoothing=0.1),
    "ignored": lambda x, w, b, t: _ce(F.linear(x, w), t.clamp(min=3), ignore_index=3),
    "class_weights": lambda x, w, b, t: _ce(F.linear(x, w), t, weight=b.detach().abs()),
    "t": lambda x, w, b, t: _ce(x @ w.t(), t),
    "T": lambda x, w, b, t: _ce(wide(torch.matmul(x, w.T)), t),
    "mT": lambda x, w, b, t: _ce(x @ w.mT, t),
    "transpose": lambda x, w, b, t: _ce(x.matmul(w.transpose(0, 1)), t),
    "permute": lambda x, w, b, t: _ce(x @ w.permute(1, 0), t),
    "mm": lambda x, w, b, t: _ce(torch.mm(_flat(x), w.t()), t),
    "added_bias": lambda x, w, b, t: _ce(x @ w.t() + b, t),
    "bias_first": lambda x, w, b, t: _ce(b + x @ w.t(), t),
    "turned": lambda x, w, b, t: _ce(x @ (w * 2).t().contiguous(), t),
    "square": lambda x, w, b, t: _ce(x @ w[:8].permute(0, 1), t.clamp(max=7)),
    "transposed": lambda x, w, b, t: F.cross_entropy(F.linear(x, w).transpose(1, 2), t),
    "shifted": _shifted,
    "shifted_first": _shifted_first,
    "shifted_and_transposed": _shifted_and_transposed,
    "padded": _padded,
    "log_softmax": _log_softmax,
    "capped": _capped,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(compare: Any, name: str, dtype: torch.dtype) -> None:
    compiled, recorder = compare.compile(SPELLINGS[name])
    assert_step(compiled, SPELLINGS[name], *_data(dtype))
    assert recorder.report().counts() == DONE, recorder.report()
    for node in compare.graphs[0].graph.nodes:
        value = node.meta.get("example_value")
        logits = isinstance(value, Tensor) and value.numel() >= 10 * CLASSES
        assert not logits or value.shape[-1] == 8, f"{node} holds logits"


@pytest.mark.parametrize("trained", range(8))
def test_gradients_that_are_wanted(compare: Any, trained: int) -> None:
    *layer, target = _data()
    for i, tensor in enumerate(layer):
        tensor.requires_grad_(bool(trained >> i & 1))
    compiled, recorder = compare.compile(SPELLINGS["bias"])
    assert_step(compiled, SPELLINGS["bias"], *layer, target)
    assert recorder.report().counts() == DONE
    (call,) = [node for node in compare.graphs[0].graph.nodes if node.target is OPERATOR]
    assert call.args[-3:] == tuple(tensor.requires_grad for tensor in layer)


def test_inference(compare: Any) -> None:
    compiled, recorder = compare.compile(lambda *a: SPELLINGS["bias"](*a))
    with torch.no_grad():
        assert_step(compiled, SPELLINGS["bias"], *_data())
    (call,) = [node for node in compare.graphs[0].graph.nodes if node.target is OPERATOR]
    assert call.args[-3:] == (False, False, False)
    assert recorder.report().counts() == DONE


def test_dynamic_shapes(compare: Any) -> None:
    for name in ("shifted", "upcast", "shifted_first"):
        compiled, recorder = compare.compile(SPELLINGS[name], "eager", dynamic=True)
        for rows in (6, 9, 4):
            assert_step(compiled, SPELLINGS[name], *_data(torch.bfloat16, rows))
        assert recorder.graphs == 1 and recorder.report().counts() == DONE, recorder.report()


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_a_slice_up_to_a_size_of_run_time(compare: Any, inner: str) -> None:
    def loss(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        logits = F.linear(x, w)[:, : t.shape[1] - 1]
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), t[:, 1:].reshape(-1))

    compiled, recorder = compare.compile(loss, inner, dynamic=True)
    for length in (6, 9, 4):
        x, w = torch.randn(2, length, 8).requires_grad_(), torch.randn(5, 8).requires_grad_()
        assert_step(compiled, loss, x, w, torch.randint(5, (2, length)))
    assert recorder.report().counts() == DONE, recorder.report()


def test_slices_that_name_all_classes(compare: Any) -> None:
    """The bound that is the number of classes is not one of the features."""

    def loss(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return _ce(F.linear(x, w)[:, 1:-1:2, :3], t[:, :2])

    _, _, _, target = _data()
    inputs = (torch.randn(2, 6, 8).requires_grad_(), torch.randn(3, 8).requires_grad_())
    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *inputs, target.clamp(0, 2))
    assert recorder.report().counts() == DONE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(compare: Any, dtype: torch.dtype) -> None:
    def loss(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype):
            return _ce(F.linear(x, w, b), t)

    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *_data())
    found = recorder.report()
    assert found.counts() == (DONE if dtype == torch.bfloat16 else {}), found


def test_loss_outside_of_autocast(compare: Any) -> None:
    def loss(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = F.linear(x, w, b)
        return _ce(wide(y), t)

    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *_data())
    assert recorder.report().counts() == INSTEAD
    assert any("autocast mode" in r.reason for r in recorder.report().refusals)


def test_inside_a_checkpoint(compare: Any) -> None:
    def loss(*a: Tensor) -> Tensor:
        return checkpoint(SPELLINGS["upcast"], *a, use_reentrant=False)

    compiled, recorder = compare.compile(loss)
    assert_step(compiled, loss, *_data())
    assert recorder.report().counts() == DONE


LOOK_ALIKES: dict[str, tuple[Callable[..., Any], str]] = {
    "returned": (
        lambda x, w, b, t: (lambda y: (_ce(wide(y), t), y))(F.linear(x, w)),
        "the logits are returned as well",
    ),
    "returned_upcast": (
        lambda x, w, b, t: (lambda y: (_ce(y, t), y))(wide(F.linear(x, w))),
        "the logits are returned as well",
    ),
    "returned_sum": (
        lambda x, w, b, t: (lambda y: (_ce(wide(y), t), y))(x @ w.t() + b),
        "the logits are returned as well",
    ),
    "returned_product": (
        lambda x, w, b, t: (lambda y: (_ce(wide(y + b), t), y))(x @ w.t()),
        "the logits are returned as well",
    ),
    "accuracy": (
        lambda x, w, b, t: (lambda y: (_ce(y, t), (y.argmax(-1) == t).sum()))(F.linear(x, w)),
        "the logits are also used by",
    ),
    "two_losses": (
        lambda x, w, b, t: (lambda y: _ce(y, t) + y.logsumexp(-1).square().mean())(F.linear(x, w)),
        "the logits are also used by",
    ),
    "single_rows": (
        lambda x, w, b, t: _ce(F.linear(x, w), t, reduction="none"),
        "compute the logits again",
    ),
    "wide_class_weights": (
        lambda x, w, b, t: _ce(wide(F.linear(x, w)), t, weight=wide(b).detach().abs()),
        "the class weights are torch.float32",
    ),
    "bias_in_float32": (
        lambda x, w, b, t: _ce(x @ w.t() + wide(b), t),
        "is added to a product in torch.bfloat16",
    ),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alikes(compare: Any, name: str, monkeypatch: Any) -> None:
    # Elsewhere a linear layer in bfloat16 is replaced as well.
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    function, reason = LOOK_ALIKES[name]
    compiled, recorder = compare.compile(function)
    assert_step(compiled, function, *_data(torch.bfloat16))
    report = recorder.report()
    assert report.count("linear_cross_entropy") == 0, report
    reasons = [r.reason for r in report.refusals if r.pattern == "linear_cross_entropy"]
    assert len(reasons) == 1 and reason in reasons[0], report
    assert report.counts() == INSTEAD


def test_single_rows_in_inference(compare: Any) -> None:
    function = LOOK_ALIKES["single_rows"][0]
    compiled, recorder = compare.compile(function)
    with torch.no_grad():
        assert_step(compiled, function, *_data())
    assert recorder.report().counts() == DONE


NO_LAYERS: dict[str, Callable[..., Any]] = {
    "scaled": lambda x, w, b, t: _ce(F.linear(x, w) * 0.5, t),
    "bias_per_row": lambda x, w, b, t: _ce(x @ w.t() + x[..., :1], t),
    "batched": lambda x, w, b, t: _ce(x @ w.t().expand(2, 8, CLASSES), t),
    "cut": lambda x, w, b, t: _ce(F.linear(x, w)[..., :7], t.clamp(max=6)),
    "mixed": lambda x, w, b, t: _ce(
        F.linear(x, w).view(-1, 6), F.pad(t.view(-1), (0, 122)).clamp(max=5)
    ),
    "sliced_rows": lambda x, w, b, t: _ce(_flat(F.linear(x, w))[1:], t.view(-1)[1:]),
}


@pytest.mark.parametrize("name", NO_LAYERS)
def test_other_producers(compare: Any, name: str) -> None:
    compiled, recorder = compare.compile(NO_LAYERS[name])
    assert_step(compiled, NO_LAYERS[name], *_data())
    assert recorder.report().counts() == INSTEAD, recorder.report()


WRITES: dict[str, Callable[..., Any]] = {
    "to_the_logits": lambda x, w, t: (lambda y: (y.mul_(2), _ce(y, t))[1])(F.linear(x, w)),
    "to_the_input": lambda x, w, t: (lambda y: (x.mul_(2), _ce(y, t))[1])(F.linear(x, w)),
    "to_the_weight": lambda x, w, t: (lambda y: (w.mul_(2), _ce(y, t))[1])(F.linear(x, w)),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(compare: Any, name: str) -> None:
    def loss(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
        return WRITES[name](x * 1, w * 1, t)

    compiled, recorder = compare.compile(loss, "eager")
    with torch.no_grad():
        assert_step(compiled, loss, *_data())
    assert recorder.report().count("linear_cross_entropy") == 0, recorder.report()


def test_write_over_the_loss(compare: Any) -> None:
    def loss(x: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
        found = _ce(F.linear(x, w), t, reduction="sum")
        found /= 5
        return found

    for inner in ("eager", "aot_eager"):
        compiled, recorder = compare.compile(loss, inner)
        assert_step(compiled, loss, *_data())
        assert recorder.report().counts() == DONE
