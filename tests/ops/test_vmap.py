"""`torch.func.vmap`: what a loop over the samples gives, from one call of the kernel."""

from __future__ import annotations

from typing import Any

import fusewheel
import pytest
import torch
from calls import functional
from functorch.compile import make_boxed_func
from fusewheel.dispatch.operator import Make, Operator
from fusewheel.dispatch.sharding import PARTIAL
from oracle import assert_as_good_as_eager, tensors_of
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.func import grad, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

LARGEST = 1500
SAMPLES = 3


class Calls(TorchDispatchMode):
    """Counts those of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.namespace == "fusewheel"
        return func(*args, **(kwargs or {}))


def cases(operator: Operator):
    """Small samples, and which of their tensors get a batch: all that are floating, and each."""
    for index, arguments in enumerate(operator.samples(Make(torch.float64, seed=91))):
        tensors = [i for i, a in enumerate(arguments) if isinstance(a, Tensor)]
        if sum(arguments[i].numel() for i in tensors) > LARGEST:
            continue
        if "norm_backward" in operator.name and arguments[0].shape[-1] == 1:
            continue  # Zero, unless the statistics are those of another sample.
        floating = tuple(i for i in tensors if arguments[i].is_floating_point())
        for which in dict.fromkeys((floating, *((i,) for i in tensors))):
            if operator.mutates is None or operator.mutates in which:
                yield f"{operator.name}, sample {index}, {which}", arguments, which


def batch(
    operator: Operator, arguments: tuple, which: tuple[int, ...], dim: int = 0
) -> tuple[Any, ...]:
    """Other values for each sample, that are as valid. Bounds of sequences and ends of groups are
    valid in one order only.
    """
    names = [argument.name for argument in operator.overload._schema.arguments]

    def stack(a: Tensor, name: str) -> Tensor:
        sorted_ = name.startswith("cu_seqlens") or name == "ends"
        turns = [0] * SAMPLES if sorted_ else range(SAMPLES)
        rolled = [a.detach().flatten().roll(k).view(a.shape) for k in turns]
        return torch.stack(rolled, dim if dim == 0 else a.dim())

    pairs = zip(arguments, names, strict=False)
    return tuple(stack(a, name) if i in which else a for i, (a, name) in enumerate(pairs))


def sample(arguments: tuple, which: tuple[int, ...], k: int, dim: int = 0) -> tuple:
    return tuple(a.select(dim, k) if i in which else a for i, a in enumerate(arguments))


def looped(function, arguments: tuple, which: tuple[int, ...]) -> list[Tensor]:
    rows = [tensors_of(function(*sample(arguments, which, k))) for k in range(SAMPLES)]
    return [torch.stack(row) for row in zip(*rows, strict=True)]


def dims(arguments: tuple, which: tuple[int, ...], dim: int = 0) -> tuple:
    return tuple(dim if i in which else None for i in range(len(arguments)))


def test_a_batch_is_a_loop(operator: Operator):
    for what, arguments, which in cases(operator):
        batched = batch(operator, arguments, which)
        with Calls() as calls:
            got = tensors_of(vmap(functional(operator), dims(batched, which))(*batched))
        assert calls.count <= 1, what
        for k, (a, b) in enumerate(
            zip(got, looped(functional(operator), batched, which), strict=True)
        ):
            # Matrix products choose how to sum by the number of rows.
            if calls.count and not operator.name.startswith("linear"):
                assert torch.equal(a, b), f"{what}, output {k}"
            else:
                assert_as_good_as_eager(a, b, b, f"{what}, output {k}")


def cut_alike(operator: Operator, arguments: tuple) -> list[tuple[int, ...]]:
    """The tensors that the operator's sharding rule cuts together, for each way in which no result
    is a sum over the pieces: samples of these tensors can be put together too.
    """
    found = []
    for layout in () if operator.sharding is None else operator.sharding(*arguments):
        which = tuple(i for i, place in enumerate(layout.inputs) if isinstance(place, int))
        written = operator.mutates is None or operator.mutates in which
        if written and PARTIAL not in (*layout.inputs, *layout.outputs):
            found.append(which)
    return list(dict.fromkeys(found))


def test_what_can_be_cut_is_one_call(operator: Operator):
    for arguments in operator.samples(Make(torch.float64, seed=92)):
        if sum(a.numel() for a in arguments if isinstance(a, Tensor)) > LARGEST:
            continue
        for which in cut_alike(operator, arguments):
            want = looped(functional(operator), batch(operator, arguments, which), which)
            for dim in (0, -1):
                batched = batch(operator, arguments, which, dim)
                with Calls() as calls:
                    got = vmap(functional(operator), dims(batched, which, dim))(*batched)
                assert calls.count == 1, f"{arguments}, {which}"
                for a, b in zip(tensors_of(got), want, strict=True):
                    assert_as_good_as_eager(a, b, b)


def norm(x: Tensor) -> Tensor:
    weight = torch.linspace(0.5, 2, x.shape[-1], dtype=x.dtype)
    return fusewheel.rms_norm(x, x.shape[-1], weight, 1e-6)


def once(function, *arguments: Tensor) -> Tensor:
    with Calls() as calls:
        result = function(*arguments)
    assert calls.count == 1
    return result


def test_nested():
    x = Make(torch.float64)(2, 3, 4, 5)
    assert torch.equal(once(vmap(vmap(vmap(norm))), x), norm(x))
    crossed = once(vmap(vmap(norm, 1, 1), 2, 2), x)
    assert torch.equal(crossed, norm(x.transpose(0, 2)).transpose(0, 2))
    q = Make(torch.float64)(2, 3, 1, 4, 5, 6)
    cos, sin = Make(torch.float64, seed=1)(3, 5, 6), Make(torch.float64, seed=2)(2, 5, 6)

    def rotate(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return fusewheel.rope(q, q, cos, sin)[0]

    got = once(vmap(vmap(rotate, (0, 0, None)), (0, None, 0)), q, cos, sin)
    for i in range(2):
        for k in range(3):
            assert torch.equal(got[i, k], rotate(q[i, k], cos[k], sin[i]))


def test_one_sample_and_none():
    x = Make()(4, 5)
    assert torch.equal(vmap(norm)(x[:1]), norm(x[:1]))
    logits, target = Make()(1, 4, 5), torch.zeros(1, 4, dtype=torch.int64)
    loss = fusewheel.cross_entropy(logits[0], target[0])
    assert torch.equal(vmap(fusewheel.cross_entropy)(logits, target)[0], loss)
    assert vmap(norm)(x[:0]).shape == (0, 5)
    assert vmap(fusewheel.cross_entropy)(logits[:0], target[:0]).shape == (0,)


def test_no_dimension_of_its_own_is_no_row():
    with pytest.raises((RuntimeError, IndexError)):
        vmap(lambda x: fusewheel.rms_norm(x, 3, torch.ones(3)))(torch.ones(3))


def test_derivatives_of_a_batch():
    x, weight = Make(torch.float64)(4, 3, 5), Make(torch.float64, seed=1)(5)

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return fusewheel.rms_norm(x, 5, weight).pow(3).sum()

    rows = [grad(loss, (0, 1))(row, weight) for row in x]
    want_x, want_weight = (torch.stack(part) for part in zip(*rows, strict=True))
    together = grad(lambda *given: vmap(loss, (0, None))(*given).sum(), (0, 1))(x, weight)
    torch.testing.assert_close(together, (want_x, want_weight.sum(0)))
    apart = vmap(grad(loss, (0, 1)), (0, None))(x, weight)
    torch.testing.assert_close(apart, (want_x, want_weight))
    # Ordinary autograd, through the kernel's own backward.
    leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    once(vmap(loss, (0, None)), *leaves).sum().backward()
    torch.testing.assert_close(leaves[0].grad, want_x)
    torch.testing.assert_close(leaves[1].grad, want_weight.sum(0))
    tangent = Make(torch.float64, seed=2)(*x.shape)
    slope = jvp(lambda x: vmap(loss, (0, None))(x, weight), (x,), (tangent,))[1]
    torch.testing.assert_close(slope, (want_x * tangent).sum((1, 2)))


def rotated_(x: Tensor, cos: Tensor) -> Tensor:
    fusewheel.rope_(x, cos, cos)
    return x


@pytest.mark.parametrize("dim", (0, 1, 2))
@pytest.mark.parametrize("dense", (True, False))
def test_in_place(dim: int, dense: bool):
    """Written where it lies, whatever dimension has the samples, and autograd knows."""
    x = Make(torch.float64)(3, 3, 3, 4, 6) if dense else Make(torch.float64).strided(3, 3, 3, 4, 6)
    cos = Make(torch.float64, seed=1)(4, 6)

    def apart(x: Tensor) -> Tensor:
        return torch.stack([fusewheel.rope(r, r, cos, cos)[0] for r in x.unbind(dim)], dim)

    leaf, other = (x.detach().requires_grad_() for _ in range(2))
    written = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(leaf)
    version = written._version
    once(vmap(rotated_, (dim, None), dim), written, cos)
    assert torch.equal(written, apart(x))
    assert written._version > version
    for values in (written, apart(other)):
        values.pow(2).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)


def test_no_room_to_write():
    rows, one = torch.ones(3, 1, 2, 4, 6), torch.ones(4, 6)
    with pytest.raises(RuntimeError, match="vmap"):
        vmap(lambda cos: rotated_(rows[0], cos))(one.expand(3, 4, 6))


def test_compiled():
    called = []

    def compiler(graph, inputs):
        called.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    x = Make()(4, 3, 5)
    compiled = torch.compile(vmap(norm), backend=aot_autograd(fw_compiler=compiler), fullgraph=True)
    assert torch.equal(compiled(x), norm(x))
    assert called.count("fusewheel.rms_norm.default") == 1
    assert not any("pow" in name for name in called)
