"""Autocast, subclasses, dispatch modes, copies, profiler and flop counter."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from doctor.defects.declare import Twin, planted, random
from fusewheel.doctor import traps
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

ONE = [(random(3, 4),)]


@planted("autocast", trap=traps.AUTOCAST, samples=[(random(4, 4),)])
def mixes_what_is_cast(twin: Twin) -> Any:
    """A product is cast under autocast, what it is mixed with is not."""

    def function(x: Tensor) -> Tensor:
        product = x @ x
        return torch.lerp(product if twin.faulty else product.to(x.dtype), x, 0.5)

    return function


@planted("autocast", trap=traps.AUTOCAST, samples=[(random(4, 4),)])
def mixes_its_gradient(twin: Twin) -> Any:
    """The gradient of a product that was cast is mixed with what was not."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return torch.lerp(grad if twin.faulty else grad.to(x.dtype), x, 0.5)

    return Product.apply


@planted("subclass", trap=traps.SUBCLASS)
def reads_the_data(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        if not twin.faulty:
            return x * 2
        data = (x.detach() * 2).numpy().tobytes()
        return torch.frombuffer(bytearray(data), dtype=x.dtype).view(x.shape)

    return function


@planted("subclass", trap=traps.SUBCLASS, reason="a result is a plain tensor")
def unwraps(twin: Twin) -> Any:
    """Takes what is inside of a tensor for the tensor."""

    def function(x: Tensor) -> Tensor:
        return (getattr(x, "inner", x) if twin.faulty else x) * 2

    return function


@planted("subclass", trap=traps.SUBCLASS)
def another_result_of_subclasses(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        return x * (2 if type(x) in (Tensor, torch.nn.Parameter) or not twin.faulty else 3)

    return function


def by_address(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        if not twin.faulty:
            return x * 2
        values = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
        doubled = (ctypes.c_float * x.numel())(*(2 * value for value in values))
        return torch.frombuffer(doubled, dtype=torch.float32)

    return function


@planted("dispatch mode", trap=traps.MODE, samples=[(random(5),)], reason="saw no operator at all")
def reads_memory_by_address(twin: Twin) -> Any:
    return by_address(twin)


@planted("profiler", trap=traps.PROFILER, samples=[(random(5),)])
def leaves_no_trace(twin: Twin) -> Any:
    return by_address(twin)


@planted("dispatch mode", trap=traps.MODE, samples=ONE)
def another_result_under_modes(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        watched = torch.utils._python_dispatch._get_current_dispatch_mode() is not None
        return x * (3 if watched and twin.faulty else 2)

    return function


@planted("copies", trap=traps.PICKLE, samples=ONE)
def called_lambda(twin: Twin) -> Any:
    """A keyword cannot stand after a dot in the code that torch.fx writes."""
    return twin.operator(lambda x: x * 2, name="lambda" if twin.faulty else "lambda_")


@planted("copies", trap=traps.PICKLE, samples=ONE)
def every_second_call(twin: Twin) -> Any:
    calls = [0]

    def kernel(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * (calls[0] if twin.faulty else 2)

    return twin.operator(kernel)


@planted("flops", trap=traps.FLOPS, samples=ONE)
def flop_formula_of_other_arguments(twin: Twin) -> Any:
    op = twin.operator(lambda x: x * 2)
    formula: Any = lambda x, out_shape=None: 1  # noqa: E731
    if twin.faulty:
        formula = lambda x, y, out_shape=None: 1  # noqa: E731
    register_flop_formula(op.overloadpacket)(formula)
    return op


@planted("flops", trap=traps.FLOPS, samples=ONE)
def fewer_flops_than_none(twin: Twin) -> Any:
    op = twin.operator(lambda x: x * 2)
    formula: Any = lambda x, out_shape=None: -1 if twin.faulty else 1  # noqa: E731
    register_flop_formula(op.overloadpacket)(formula)
    return op


@planted("flops", trap=traps.FLOPS, samples=ONE)
def another_result_counted(twin: Twin) -> Any:
    return another_result_under_modes(twin)
