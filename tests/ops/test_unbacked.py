"""Sizes that are only known at run time: rows, heads or features that a mask picks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import fusewheel
import pytest
import torch
from calls import functional
from fusewheel import ops
from fusewheel.dispatch.operator import Arguments, Make, Operator
from nightly import NIGHTLY
from oracle import tensors_of
from torch import Tensor, nn

Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _sizes_of_run_time():
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        yield


def cuts(operator: Operator, make: Make, most: int) -> Iterator[tuple[Arguments, tuple[Any, ...]]]:
    """Samples, and every way to leave out a part of their tensors: the dimension of each argument
    that is cut, as the operator's sharding rule has it.
    """
    assert operator.sharding is not None
    tried = 0
    for arguments in operator.samples(make):
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        if any(t.numel() < 2 for t in tensors):
            continue
        layouts = {layout.inputs for layout in operator.sharding(*arguments) if not layout.even}
        for dims in sorted(layouts, key=str):
            sizes = [a.shape[d] for a, d in zip(arguments, dims, strict=True) if isinstance(d, int)]
            if sizes and min(sizes) > 1:
                yield arguments, dims
                tried += 1
        if tried >= most:
            return


def cut(operator: Operator, arguments: Arguments, dims: tuple[Any, ...], how: str) -> Program:
    """A function of masks and the sample's tensors that calls the operator with parts of these.

    `"picked"`: those elements where the mask is true. `"apart"`: likewise, where PyTorch cannot
    know that two arguments get equally many. `"narrowed"`: as many from the first on, a view.
    """
    sizes = cut_sizes(arguments, dims)
    call = functional(operator)

    def program(masks: list[Tensor], tensors: list[Tensor]) -> Any:
        indices = [mask.nonzero().squeeze(1) for mask in masks]
        left = list(tensors)
        given = []
        for argument, dim in zip(arguments, dims, strict=True):
            if not isinstance(argument, Tensor):
                given.append(argument)
                continue
            tensor = left.pop(0)
            if isinstance(dim, int):
                at = sizes.index(argument.shape[dim])
                if how == "narrowed":
                    tensor = tensor.narrow(dim, 0, indices[at].shape[0])
                else:
                    own = masks[at].nonzero().squeeze(1) if how == "apart" else indices[at]
                    tensor = tensor.index_select(dim, own)
            given.append(tensor)
        return call(*given)

    return program


def cut_sizes(arguments: Arguments, dims: tuple[Any, ...]) -> list[int]:
    pairs = zip(arguments, dims, strict=True)
    return sorted({a.shape[d] for a, d in pairs if isinstance(d, int)})


def masks_for(arguments: Arguments, dims: tuple[Any, ...]) -> list[Tensor]:
    """All elements but the first."""
    return [torch.arange(size) > 0 for size in cut_sizes(arguments, dims)]


def tensors_in(arguments: Arguments) -> list[Tensor]:
    return [a for a in arguments if isinstance(a, Tensor)]


def assert_same(got: Any, want: Any) -> None:
    for a, b in zip(tensors_of(got), tensors_of(want), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert a.stride() == b.stride() or not a.numel()


class Module(nn.Module):
    def __init__(self, program: Program):
        super().__init__()
        self.program = program

    def forward(self, masks: list[Tensor], tensors: list[Tensor]) -> Any:
        return self.program(masks, tensors)


HOWS = ("picked", "apart", "narrowed")
# A change exports every second operator in one way (they take turns), and compiles every eighth
# forward one.
EXPORTED = [
    pytest.param(
        o, how, id=f"{o.name}-{how}", marks=() if k == i % len(HOWS) and i % 2 == 0 else NIGHTLY
    )
    for i, o in enumerate(ops.operators())
    for k, how in enumerate(HOWS)
]
FORWARD = [o for o in ops.operators() if not o.name.endswith("_backward")]
COMPILED = [
    pytest.param(o, id=o.name, marks=() if o in FORWARD[1::8] else NIGHTLY) for o in ops.operators()
]


@pytest.mark.parametrize(("declared", "how"), EXPORTED)
def test_export(declared: Operator, how: str):
    operator = declared
    for arguments, dims in cuts(operator, Make(seed=40), most=1):
        program = cut(operator, arguments, dims, how)
        masks, tensors = masks_for(arguments, dims), tensors_in(arguments)
        exported = torch.export.export(Module(program), (masks, tensors), strict=False).module()
        fewer = [torch.arange(len(mask)) < len(mask) - 1 for mask in masks]
        # One element is not a special case, nor are all.
        for chosen in (masks, fewer, [torch.arange(len(m)) < 1 for m in masks]):
            assert_same(exported(chosen, tensors), program(chosen, tensors))


@pytest.mark.parametrize("declared", COMPILED)
def test_compiled_with_gradients(declared: Operator):
    """Two dimensions are cut; `test_export` cuts all of them."""
    operator = declared
    for arguments, dims in islice(cuts(operator, Make(requires_grad=True, seed=41), most=1), 2):
        program = cut(operator, arguments, dims, "picked")
        masks, tensors = masks_for(arguments, dims), tensors_in(arguments)
        torch.compiler.reset()
        compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
        want, got = program(masks, tensors), compiled(masks, tensors)
        assert_same(got, want)
        assert_same(gradients(got, tensors), gradients(want, tensors))


def gradients(results: Any, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    outputs = [o for o in tensors_of(results) if o.requires_grad]
    inputs = [t for t in tensors if t.requires_grad]
    if not outputs:
        return ()
    ones = [torch.ones_like(o) for o in outputs]
    found = torch.autograd.grad(outputs, inputs, ones, materialize_grads=True)
    return tuple(found)


@NIGHTLY
def test_inductor_finds_the_promised_strides():
    make = Make(requires_grad=True, seed=42)
    x, weight, table = make(33, 64), make(64), make(1, 16).detach()
    mask = torch.arange(33) % 3 > 0

    def step(x: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        heads = fusewheel.silu_mul(fusewheel.rms_norm(x[mask], weight.shape, weight), x[mask])
        heads = heads.unflatten(1, (4, 1, 16)).transpose(0, 2)
        rows = table.expand(heads.shape[2], 16)
        return fusewheel.rope(heads, heads, rows, rows)[0].square().sum()

    want = torch.autograd.grad(step(x, mask, weight), (x, weight))
    got = torch.autograd.grad(torch.compile(step, fullgraph=True)(x, mask, weight), (x, weight))
    torch.testing.assert_close(got, want)


def test_a_layout_that_only_run_time_knows_is_refused_with_a_remedy():
    """A view of the first so many columns of a transposed tensor has gaps, or is all of it."""
    x = torch.randn(2, 9, 8).transpose(1, 2)

    def program(x: Tensor, mask: Tensor) -> Tensor:
        return fusewheel.gelu(x.narrow(1, 0, mask.nonzero().shape[0]))

    def mended(x: Tensor, mask: Tensor) -> Tensor:
        return fusewheel.gelu(x.narrow(1, 0, mask.nonzero().shape[0]).contiguous())

    mask = torch.arange(8) < 8
    message = r"gelu: x must have a memory layout that is known.*Call \.contiguous\(\) on it"
    with pytest.raises(RuntimeError, match=message):
        torch.compile(program, backend="aot_eager", fullgraph=True)(x, mask)
    got = torch.compile(mended, backend="aot_eager", fullgraph=True)(x, mask)
    assert_same(got, mended(x, mask))
