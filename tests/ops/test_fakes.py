"""Fakes, by which graphs are traced, take and refuse what the kernels take and refuse."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from fusewheel.dispatch.operator import Arguments, Make, Operator
from nightly import NIGHTLY
from oracle import DTYPES as FLOATING
from oracle import tensors_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.meta_utils import MetaConverter

OPTIONS = (-1, 3, 2**40, -0.5, 1.5, float("nan"))
DTYPES = (torch.int32, torch.int64, torch.uint8, torch.complex64, torch.bfloat16, torch.float64)


def on_meta(operator: Operator, arguments: Arguments) -> Any:
    convert = MetaConverter()  # tensors that share memory share it there too
    return operator.overload(*(convert(a) if isinstance(a, Tensor) else a for a in arguments))


def in_fake_mode(operator: Operator, arguments: Arguments) -> Any:
    with FakeTensorMode() as mode:
        given = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments]
        return operator.overload(*given)


def by_kernel(operator: Operator, arguments: Arguments) -> Any:
    return operator.overload(*arguments)


MODES = [pytest.param(on_meta, id="meta"), pytest.param(in_fake_mode, id="FakeTensorMode")]
BEFORE_A_CHANGE = ((on_meta, torch.bfloat16), (in_fake_mode, torch.float32))
MODES_AND_DTYPES = [
    pytest.param(
        mode.values[0],
        dtype,
        id=f"{mode.id}-{str(dtype).removeprefix('torch.')}",
        marks=() if (mode.values[0], dtype) in BEFORE_A_CHANGE else NIGHTLY,
    )
    for mode in MODES
    for dtype in FLOATING
]


def said(function: Callable[..., Any], operator: Operator, arguments: Arguments) -> tuple[Any, str]:
    """What a call returns, or how it refuses. The device is that of the tensors."""
    try:
        result = function(operator, arguments)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return None, str(error).replace("on meta", "on cpu")
    return [(t.shape, t.stride(), t.dtype) for t in tensors_of(result) if t is not None], ""


@pytest.mark.parametrize(("mode", "of"), MODES_AND_DTYPES)
def test_a_fake_refuses_bad_inputs_as_the_kernel_does(
    operator: Operator, mode: Callable[..., Any], of: torch.dtype
):
    for bad in operator.refusals(Make(of)):
        _, want = said(by_kernel, operator, bad.arguments)
        _, got = said(mode, operator, bad.arguments)
        assert re.search(bad.message, got, re.DOTALL), f"{bad.message}, got: {got or 'a result'}"
        assert got == want


@pytest.mark.parametrize(("mode", "of"), MODES_AND_DTYPES)
def test_a_fake_takes_what_the_kernel_takes(
    operator: Operator, mode: Callable[..., Any], of: torch.dtype
):
    for arguments in operator.samples(Make(of, seed=9)):
        assert said(mode, operator, arguments) == said(by_kernel, operator, arguments)


def changes(argument: Any) -> Iterator[Any]:
    """Everything that one argument may be instead."""
    if isinstance(argument, bool):
        return
    if isinstance(argument, (int, float)):
        yield from (type(argument)(o) for o in OPTIONS if o == o or isinstance(argument, float))
        return
    if not isinstance(argument, Tensor):
        return
    yield None
    yield from (argument.nan_to_num(0.0).to(d) for d in DTYPES if d != argument.dtype)
    if argument.dtype == torch.float32:
        yield argument.contiguous().to_sparse()
    yield argument.unsqueeze(0)
    yield argument.unsqueeze(-1)
    yield argument.flatten()[:0]
    for dim, size in enumerate(argument.shape):
        yield argument.select(dim, 0) if size else argument.sum(dim)
        yield argument.narrow(dim, 0, max(size - 1, 0))
        yield torch.cat((argument, argument.narrow(dim, 0, min(1, size))), dim)
        yield argument.narrow(dim, 0, min(1, size))
        yield argument.narrow(dim, 0, 0)
        yield argument.narrow(dim, 0, min(1, size)).expand(argument.shape) if size else argument


def spoilt(arguments: Arguments) -> Iterator[Arguments]:
    """The arguments with one of them changed."""
    for i, argument in enumerate(arguments):
        for change in changes(argument):
            yield (*arguments[:i], change, *arguments[i + 1 :])


@pytest.mark.parametrize(
    ("mode", "most"),
    [
        pytest.param(in_fake_mode, 30, id="FakeTensorMode-30"),
        pytest.param(in_fake_mode, None, id="FakeTensorMode-all", marks=NIGHTLY),
        pytest.param(on_meta, None, id="meta-all", marks=NIGHTLY),
    ],
)
def test_a_fake_and_its_kernel_agree_about_any_one_change(
    operator: Operator, mode: Callable[..., Any], most: int | None
):
    """About whether it is refused, in which words, and about the results if it is not."""
    samples = [s for s in operator.samples(Make(seed=10)) if sum(_size(a) for a in s) < 5000]
    every = [given for arguments in samples[:3] for given in spoilt(arguments)]
    refused = 0
    for given in random.sample(every, min(len(every), most or len(every))):
        want = said(by_kernel, operator, given)
        if _looks_at_values(want[1]):
            continue
        got = said(mode, operator, given)
        assert got == want, f"{[_described(a) for a in given]}: {got}, the kernel: {want}"
        refused += bool(want[1])
    assert refused > 2


def _size(argument: Any) -> int:
    return argument.numel() if isinstance(argument, Tensor) else 0


def _looks_at_values(message: str) -> bool:
    """Classes, positions, lengths, pages, bounds of sequences, ends of groups: numbers, which no
    fake has.
    """
    known = (
        "target must be between|positions must be rows|cu_seqlens_. must (begin|not fall|end)|"
        "lengths must be between|block_table must name|ends must not fall"
    )
    return re.search(known, message) is not None


def _described(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.shape, argument.stride()
    return argument


def floating(operator: Operator, arguments: Arguments) -> list[int]:
    """Arguments that a transform may be of."""
    return [
        i
        for i, a in enumerate(arguments)
        if i != operator.mutates and isinstance(a, Tensor) and a.is_floating_point()
    ]


def reference_by(transform: str, operator: Operator, arguments: Arguments) -> Any:
    """The operator where its reference runs in place of the kernel."""
    if transform == "device":
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.XPU)
        return operator.overload.redispatch(keys, *arguments)
    index = floating(operator, arguments)[0]

    def function(tensor: Tensor) -> Any:
        return operator.overload(*arguments[:index], tensor, *arguments[index + 1 :])

    given = arguments[index]
    if transform == "forward mode":
        with torch.autograd.forward_ad.dual_level():
            return function(torch.autograd.forward_ad.make_dual(given, torch.zeros_like(given)))
    if transform == "grad":
        return torch.func.vjp(function, given)
    return torch.func.vmap(function)(torch.stack((given, given)))


@pytest.mark.parametrize("transform", ["device", "forward mode", "grad", "vmap"])
def test_bad_inputs_are_refused_where_the_reference_runs(operator: Operator, transform: str):
    tried = 0
    for bad in operator.refusals(Make()):
        tensors = [a for a in bad.arguments if isinstance(a, Tensor)]
        if any(t.layout != torch.strided for t in tensors):
            continue  # transforms refuse them, each in its words
        if transform != "device" and not floating(operator, bad.arguments):
            continue
        _, got = said(partial(reference_by, transform), operator, bad.arguments)
        if transform == "vmap" and operator.mutates is not None and "vmap" in got:
            continue  # nothing shared may be written
        if "overlap" in bad.message or "expanded" in bad.message:
            continue  # a copy is written
        assert re.search(bad.message, got, re.DOTALL), f"{bad.message}, got: {got or 'a result'}"
        tried += 1
    # Those of one tensor are none, sparse or of no floating dtype.
    assert tried or transform != "device"
