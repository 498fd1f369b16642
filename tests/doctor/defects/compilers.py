"""Fakes, functionalisation and torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from doctor.defects.declare import Twin, doubled, library, planted, random
from fusewheel.doctor import traps
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

ONE = [(random(3, 4),)]


@planted("opcheck", trap=traps.MISSING_GRADIENT, samples=ONE)
def autograd_in_a_cpu_kernel(twin: Twin) -> Any:
    """A kernel on the CPU's key is below autograd, so that a tracer sees none of its gradient."""

    def kernel(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return Clear.apply(x)

    if twin.faulty:
        return twin.operator(kernel)
    return twin.operator(lambda x: x * 2, backward=doubled)


@planted("opcheck", trap=traps.OPCHECK, samples=ONE)
def writes_as_opcheck_sees(twin: Twin) -> Any:
    return twin.operator(lambda x: (x if twin.faulty else x.clone()).mul_(2) + 1)


@planted("opcheck", trap=traps.OPCHECK, samples=ONE)
def writes_without_a_graph(twin: Twin) -> Any:
    def kernel(x: Tensor) -> Tensor:
        return (x if twin.faulty and not x.requires_grad else x.clone()).mul_(2) + 1

    return twin.operator(kernel, backward=doubled)


@planted("fake", "meta", "opcheck", trap=traps.NO_FAKE)
def no_fake(twin: Twin) -> Any:
    return twin.operator(lambda x: x * 2, fake=None if twin.faulty else torch.empty_like)


@planted(
    "fake", "meta", trap=traps.WRONG_FAKE, reason=r"^shape.+\[1, 1\]\) promised, .+\[1\]\) given"
)
def fake_shape(twin: Twin) -> Any:
    right = lambda x: x.new_empty(x.shape[1:])  # noqa: E731
    return twin.operator(lambda x: x.sum(0), fake=torch.empty_like if twin.faulty else right)


@planted("fake", "meta", trap=traps.WRONG_FAKE)
def fake_dtype(twin: Twin) -> Any:
    right = lambda x: x.new_empty(x.shape, dtype=torch.float64)  # noqa: E731
    return twin.operator(lambda x: x.double(), fake=torch.empty_like if twin.faulty else right)


@planted("fake", "meta", trap=traps.WRONG_FAKE)
def fake_strides(twin: Twin) -> Any:
    right = lambda x: x.new_empty(x.shape[::-1]).t()  # noqa: E731
    return twin.operator(
        lambda x: x.t().contiguous().t() * 2, fake=torch.empty_like if twin.faulty else right
    )


@planted("functional", trap=traps.COMPILED_VALUES, samples=ONE)
def another_formula_traced(twin: Twin) -> Any:
    def function(x: Tensor) -> Tensor:
        return x * (3 if get_proxy_mode() is not None and twin.faulty else 2)

    return function


@planted("functional", trap=traps.NOT_FUNCTIONAL, samples=ONE)
def written_for_good(twin: Twin) -> Any:
    """Nothing tells functionalize what is written."""
    op = twin.operator(lambda x: (x.mul_(2), None)[1], "(Tensor(a!) x) -> ()", fake=lambda x: None)
    if not twin.faulty:
        library.impl(twin.name, lambda x: (x.copy_(x * 2), None)[1], "Functionalize")
    return op


@planted("compile", "compiled backward", "compiled sizes", trap=traps.COMPILED_VALUES, samples=ONE)
def another_formula_compiled(twin: Twin) -> Any:
    return lambda x: x * (3 if torch.compiler.is_compiling() and twin.faulty else 2)


@planted("compiled sizes", trap=traps.COMPILED_VALUES, samples=ONE)
def another_formula_compiled_without_gradient(twin: Twin) -> Any:
    return lambda x: x.detach() * (3 if torch.compiler.is_compiling() and twin.faulty else 2)


@torch.compiler.disable
def opaque(x: Tensor) -> Tensor:
    return x * 2


class Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return opaque(x)

    backward = staticmethod(doubled)


class Clear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    backward = staticmethod(doubled)


@planted("compile", "compiled backward", "compiled sizes", trap=traps.OPAQUE_FUNCTION, samples=ONE)
def opaque_function(twin: Twin) -> Any:
    return Opaque.apply if twin.faulty else Clear.apply


@planted("compile", trap=traps.OPAQUE_FUNCTION, samples=ONE)
def opaque_function_and_another_result(twin: Twin) -> Any:
    return lambda x: ((Opaque if twin.faulty else Clear).apply(x), x + 1)


@planted("compile", trap=traps.GRAPH_BREAK, samples=ONE)
def graph_break(twin: Twin) -> Any:
    return opaque if twin.faulty else lambda x: x * 2


@planted("compile", trap=traps.NO_FAKE, samples=ONE)
def function_without_a_fake(twin: Twin) -> Any:
    op = twin.operator(lambda x: x * 2, fake=None if twin.faulty else torch.empty_like)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return op(x)

        backward = staticmethod(doubled)

    return Twice.apply


@planted("compiled backward", trap=traps.COMPILED_VALUES, samples=ONE)
def another_gradient_compiled(twin: Twin) -> Any:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * (3 if torch.compiler.is_compiling() and twin.faulty else 2)

    return Twice.apply


@planted("compiled sizes", trap=traps.RECOMPILES, samples=ONE, reason="^2 graphs for two sizes")
def sizes_in_the_fake(twin: Twin) -> Any:
    def fake(x: Tensor) -> Tensor:
        return x.new_empty([int(s) if twin.faulty else s for s in x.shape])

    return twin.operator(lambda x: x * 2, fake=fake, backward=doubled)
