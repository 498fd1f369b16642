"""How people train: checkpoints, accumulated gradients, optimizers and hooks around the backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import fusewheel
import pytest
import torch
from oracle import assert_vector_as_good_as_eager
from small_model import (
    COUNTS,
    SmallModel,
    gradients,
    gradients_of,
    gradients_to_reach,
    small_model,
    tokens,
)
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

assert fusewheel
Tensor = torch.Tensor
pytestmark = pytest.mark.filterwarnings(
    # Dynamo looks at it itself, after a graph break.
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)


def compiled(function: Any, inner: str = "aot_eager", **settings: Any) -> Any:
    """By the entry point, as users do."""
    return torch.compile(function, backend="fusewheel", options={"inner": inner}, **settings)


# With the engine of PyTorch that runs a compiled backward, and the one that runs operators.
INNERS = ("aot_eager", "none")


def assert_gradients(model: Any, call: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Those by `call` are as good as the model's own."""
    wanted = gradients_to_reach(model, *inputs)
    assert_vector_as_good_as_eager(gradients_of(model, call, *inputs), *wanted, "gradients")


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = operator in (torch.ops.aten.mm.default, torch.ops.fusewheel.rms_norm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "selective": {"context_fn": functools.partial(create_selective_checkpoint_contexts, _policy)},
}


@pytest.mark.parametrize("where", ["inside", "around"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("inner", INNERS)
def test_checkpoint(kind: str, where: str, inner: str) -> None:
    """Of a compiled region, whose body is rewritten, and around one."""
    model, ids = small_model(), tokens()
    options: dict[str, Any] = {"use_reentrant": False} | CHECKPOINTS[kind]

    def through(layer: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        def call(ids: Tensor) -> Tensor:
            logits: Tensor = model.head(checkpoint(layer, model.tokens(ids), **options))
            return logits

        return call

    layer = model.layers[0]
    function = through(layer)
    counters.clear()
    if where == "inside":
        call = compiled(function, inner, fullgraph=True)
    else:
        call = through(compiled(layer, inner))
    assert_gradients(model, call, ids)
    assert counters["fusewheel"] == COUNTS
    assert not counters["graph_break"]


def test_what_a_checkpoint_saves(compare: Any) -> None:
    """The operator is computed again in backward, one that the policy keeps is not."""
    model, x = small_model(), torch.randn(2, 3, 16, requires_grad=True)
    seen: dict[str, list[str]] = {}

    def watched(function: Any, kind: str) -> list[str]:
        names: list[str] = []

        def note(gm: torch.fx.GraphModule, inputs: Any) -> Any:
            names.extend(str(n.target) for n in gm.graph.nodes if n.op == "call_function")
            return gm

        from functorch.compile import make_boxed_compiler
        from torch._dynamo.backends.common import aot_autograd

        inner = aot_autograd(fw_compiler=make_boxed_compiler(note))
        compare.compile(function, inner)[0](x).sum().backward()
        torch.compiler.reset()
        return names

    for kind, options in CHECKPOINTS.items():
        seen[kind] = watched(
            lambda x, o=options: checkpoint(model.layers[0].norm, x, use_reentrant=False, **o), kind
        )
    forward = "fusewheel.rms_norm.default"
    assert seen["plain"].count(forward) == 2 and seen["selective"].count(forward) == 1


def test_reentrant_checkpoint() -> None:
    """Dynamo leaves it to PyTorch: the graph breaks, the gradients stay."""
    model, ids = small_model(), tokens()

    def call(ids: Tensor) -> Tensor:
        x = checkpoint(model.layers[0], model.tokens(ids), use_reentrant=True)
        logits: Tensor = model.head(x)
        return logits

    assert_gradients(model, compiled(call), ids)


def _train(way: str, inner: str = "eager", dtype: torch.dtype = torch.float32) -> Tensor:
    """What three steps of two accumulated batches each add to the parameters."""
    model = small_model().to(dtype)
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

    def backward(ids: Tensor) -> Tensor:
        loss = model(ids, ids)
        loss.backward()
        return loss

    def update() -> None:
        optimizer.step()

    if way == "loss and backward":
        backward = compiled(backward, inner)
    if way == "optimizer":
        update = compiled(update, inner)

    def step(batches: list[Tensor]) -> None:
        optimizer.zero_grad()
        for ids in batches:
            backward(ids)
        update()

    call = compiled(step, inner) if way == "whole step" else step
    for number in range(3):
        call([tokens(seed=2 * number), tokens(seed=2 * number + 1)])
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - start


@pytest.mark.parametrize("way", ["loss and backward", "optimizer", "whole step"])
@pytest.mark.parametrize("inner", INNERS)
def test_accumulated_gradients_and_an_optimizer(way: str, inner: str) -> None:
    wanted = _train("eager"), _train("eager", dtype=torch.float64)
    assert_vector_as_good_as_eager(_train(way, inner), *wanted, "parameters")


def test_backward_stays_python() -> None:
    """What the engine calls while a compiled step runs is no graph of its own."""
    called: list[str] = []

    def note(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        called.extend(str(node.target) for node in gm.graph.nodes)
        return gm

    def step(x: Tensor, w: Tensor) -> None:
        fusewheel.rms_norm(x, w.shape, w).sum().backward()

    x, w = torch.randn(3, 8, requires_grad=True), torch.rand(8, requires_grad=True)
    torch.compile(step, backend=note)(x, w)
    assert x.grad is not None
    assert [name for name in called if "rms_norm" in name] == ["fusewheel.rms_norm"]


@pytest.mark.parametrize("inner", INNERS)
def test_compiled_autograd(inner: str) -> None:
    model, ids = small_model(), tokens()
    wanted = gradients_to_reach(model, ids, ids)
    call = compiled(model, inner)
    backward = torch.compile(backend="fusewheel", options={"inner": "eager"})
    with compiled_autograd._enable(backward):
        got = gradients_of(model, call, ids, ids)
    assert_vector_as_good_as_eager(got, *wanted, "gradients")
    assert counters["compiled_autograd"]["captures"]


def with_hooks(dtype: torch.dtype = torch.float32) -> SmallModel:
    """With hooks of modules that an operator replaces, and of a parameter that an operator takes.

    A copy of a model would be without that of the parameter.
    """
    model = small_model().to(dtype)
    layer: Any = model.layers[0]
    layer.gate.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    layer.norm.weight.register_hook(lambda gradient: gradient * 5)
    return model


def test_hooks() -> None:
    ids, plain, model, exact = tokens(), small_model(), with_hooks(), with_hooks(torch.float64)
    eager = gradients_of(model, model, ids)
    assert (eager - gradients_of(plain, plain, ids)).norm() > 0.1 * eager.norm()
    wanted = eager, gradients_of(exact, exact, ids)
    got = gradients_of(model, compiled(model), ids)
    assert_vector_as_good_as_eager(got, *wanted, "gradients")


def test_hook_on_a_value_inside(compare: Any) -> None:
    """`Tensor.register_hook` on a value that an operator would swallow."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 3)
        return w * y

    x, w = torch.randn(3, 8, requires_grad=True), torch.rand(8, requires_grad=True)

    def step(call: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(call(x, w).square().sum(), (x, w))

    for got, expected in zip(step(compiled(f, "eager")), step(f), strict=True):
        torch.testing.assert_close(got, expected)


def test_second_step_sees_updated_parameters() -> None:
    """Nothing of a parameter is kept from one call to the next."""
    model, ids = small_model(), tokens()
    call = compiled(model)
    for _ in range(2):
        assert_gradients(model, call, ids, ids)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
    assert gradients(model).isfinite().all()
    assert isinstance(model, SmallModel)
