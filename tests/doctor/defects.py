"""Operators with one mistake each, for the doctor to find; the names say which."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fusewheel.doctor import traps
from fusewheel.doctor.traps import Trap
from torch import Tensor

_library = torch.library.Library("defects", "DEF")
OWN_PROCESS = os.getpid()


@dataclass(frozen=True)
class Defect:
    """An operator, arguments for it, and where the doctor must find which mistake."""

    name: str
    op: Any
    samples: tuple[tuple[Any, ...], ...]
    column: str
    trap: Trap


DEFECTS: list[Defect] = []


def planted(
    column: str, trap: Trap, *samples: tuple[Any, ...]
) -> Callable[[Callable[[], Any]], None]:
    def plant(make: Callable[[], Any]) -> None:
        given = samples or ((random(3, 4),), (random(2, 3),))
        DEFECTS.append(Defect(make.__name__, make(), given, column, trap))

    return plant


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def operator(
    name: str,
    kernel: Callable[..., Any],
    schema: str = "(Tensor x) -> Tensor",
    keys: Sequence[str] = ("CPU",),
    fake: Callable[..., Any] | None = torch.empty_like,
    backward: Callable[..., Any] | None = None,
    save: Callable[..., Any] | None = None,
    tags: Sequence[torch.Tag] = (),
) -> Any:
    _library.define(name + schema, tags=tuple(tags))
    for key in keys:
        _library.impl(name, kernel, key)
    if fake is not None:
        torch.library.register_fake(f"defects::{name}", fake, lib=_library)
    if backward is not None:
        torch.library.register_autograd(
            f"defects::{name}", backward, setup_context=save or save_input, lib=_library
        )
    return getattr(torch.ops.defects, name).default


def save_input(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def twice(ctx: Any, grad: Tensor) -> Tensor:
    return 2 * grad


def square_backward(ctx: Any, grad: Tensor) -> Tensor:
    return 2 * ctx.saved_tensors[0] * grad


# What the compiler asks for.


@planted("fake", traps.NO_FAKE)
def no_fake():
    return operator("no_fake", lambda x: x * 2, fake=None)


@planted("fake", traps.WRONG_FAKE)
def fake_shape():
    return operator("fake_shape", lambda x: x.sum(0))


@planted("fake", traps.WRONG_FAKE)
def fake_dtype():
    return operator("fake_dtype", lambda x: x.double())


@planted("fake", traps.WRONG_FAKE)
def fake_strides():
    return operator("fake_strides", lambda x: x.t().contiguous().t() * 2)


@planted("compiled sizes", traps.RECOMPILES, (random(3, 4),))
def sizes_in_the_fake():
    return operator(
        "sizes_in_the_fake",
        lambda x: x * 2,
        fake=lambda x: x.new_empty([int(s) for s in x.shape]),
        backward=twice,
    )


@planted("compile", traps.COMPILED_VALUES, (random(3, 4), True))
def reads_who_calls():
    def kernel(x: Tensor, flag: bool) -> Tensor:
        compiled = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradCPU)
        kernel.calls += 1
        return x * (2 if kernel.calls < 2 else 3) + compiled * 0

    kernel.calls = 0
    return operator(
        "reads_who_calls",
        kernel,
        "(Tensor x, bool flag) -> Tensor",
        fake=lambda x, flag: torch.empty_like(x),
    )


# Derivatives.


@planted("gradient", traps.WRONG_GRADIENT)
def wrong_gradient():
    return operator("wrong_gradient", lambda x: x * x, backward=lambda c, g: g * c.saved_tensors[0])


@planted("gradient", traps.MISSING_GRADIENT)
def no_gradient():
    return operator("no_gradient", lambda x: x.detach() ** 2)


@planted("gradient", traps.MISSING_GRADIENT)
def detached():
    kernel, keys = lambda x: x.detach() * 2, ("CompositeImplicitAutograd",)
    return operator("detached", kernel, keys=keys, fake=None)


@planted("gradient", traps.WRONG_GRADIENT, (random(3), random(3)))
def one_of_two_gradients():
    return operator(
        "one_of_two_gradients",
        lambda x, y: x * y,
        "(Tensor x, Tensor y) -> Tensor",
        fake=lambda x, y: torch.empty_like(x),
        save=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        backward=lambda ctx, g: (g * ctx.saved_tensors[1], None),
    )


@planted("gradient", traps.WRONG_GRADIENT)
def wrong_in_float32_only():
    def kernel(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("x must be float32")
        return x * x

    return operator(
        "wrong_in_float32_only", kernel, backward=lambda c, g: g * 3 * c.saved_tensors[0]
    )


@planted("second", traps.WRONG_SECOND)
def second_derivative():
    return operator(
        "second_derivative",
        lambda x: x * x * x,
        backward=lambda c, g: 3 * c.saved_tensors[0].detach() ** 2 * g,
    )


@planted("forward mode", traps.SILENT_TANGENT)
def tangent_lost():
    return operator("tangent_lost", lambda x: x * x, backward=square_backward)


@planted("unused output", traps.UNDEFINED)
def every_gradient_needed():
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            return a * 2 + b * 3

    return Both.apply


@planted("changed input", traps.CONTEXT_STATE)
def saved_as_an_attribute():
    def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.x = inputs[0]

    return operator(
        "saved_as_an_attribute", lambda x: x * x, save=save, backward=lambda c, g: 2 * c.x * g
    )


@planted("checkpoint", traps.CHECKPOINT)
def recomputed_otherwise():
    def kernel(x: Tensor) -> Tensor:
        kernel.calls += 1
        return x * kernel.calls

    kernel.calls = 0

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            # Each time it runs the saved factor is another one.
            ctx.save_for_backward(kernel(torch.ones_like(x)))
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * ctx.saved_tensors[0]

    return Scaled.apply


# torch.func.


@planted("grad", traps.NO_FUNC_RULE)
def no_rule_for_func():
    return operator("no_rule_for_func", lambda x: x * x, backward=square_backward)


@planted("vmap", traps.NO_VMAP_RULE)
def no_batching_rule():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        backward = staticmethod(square_backward)

    return Square.apply


@planted("vmap", traps.WRONG_TRANSFORM)
def wrong_batching_rule():
    op = operator("wrong_batching_rule", lambda x: x - x.mean())
    torch.library.register_vmap(op, lambda info, dims, x: (x - x.mean(), dims[0]), lib=_library)
    return op


# Memory.


def bumpless(x: Tensor) -> None:
    x.data.mul_(2)


@planted("schema", traps.VERSION)
def version_not_bumped():
    return operator("version_not_bumped", bumpless, "(Tensor(a!) x) -> ()", fake=lambda x: None)


@planted("schema", traps.UNDECLARED_WRITE)
def writes_its_input():
    return operator("writes_its_input", lambda x: x.mul_(2) + 1)


@planted("schema", traps.UNDECLARED_ALIAS)
def returns_a_view():
    return operator("returns_a_view", lambda x: x.view(-1), fake=lambda x: x.new_empty(x.numel()))


def contiguous_walk(x: Tensor) -> Tensor:
    shape = torch.empty(x.shape, device="meta")
    return x.as_strided(x.shape, shape.stride()) * 2


@planted("gaps", traps.STRIDES)
def ignores_strides():
    return operator("ignores_strides", contiguous_walk)


@planted("permuted", traps.STRIDES)
def ignores_order():
    return operator("ignores_order", contiguous_walk)


@planted("expanded", traps.STRIDES)
def reads_past_a_row():
    return operator(
        "reads_past_a_row",
        lambda x: x * 2 if x.stride(0) else x * torch.arange(x.shape[0])[:, None],
    )


@planted("written", traps.STRIDES, (random(3, 4),))
def writes_into_expanded():
    def kernel(x: Tensor) -> None:
        for row in x:
            row.mul_(2)

    return operator("writes_into_expanded", kernel, "(Tensor(a!) x) -> ()", fake=lambda x: None)


# Values.


@planted("deterministic", traps.DETERMINISM)
def random_without_a_tag():
    return operator("random_without_a_tag", lambda x: x + torch.rand_like(x))


@planted("threads", traps.THREADS)
def one_scratch_for_all():
    scratch: list[Tensor] = [torch.empty(0)]

    def kernel(x: Tensor) -> Tensor:
        scratch[0] = x
        time.sleep(0.001)
        return scratch[0] * 2

    return operator("one_scratch_for_all", kernel)


@planted("scalars", traps.TRUNCATED, (random(3, 4), 2.0))
def float_read_as_int():
    return operator(
        "float_read_as_int",
        lambda x, factor: x * int(factor),
        "(Tensor x, float factor) -> Tensor",
        fake=lambda x, factor: torch.empty_like(x),
    )


@planted("empty", traps.CRASH)
def dies_on_empty():
    return operator("dies_on_empty", lambda x: x * 2 if x.numel() else os.abort())


@planted("empty", traps.HANG)
def hangs_on_empty():
    return operator("hangs_on_empty", lambda x: x * 2 if x.numel() else threading.Event().wait())


@planted("empty", traps.EMPTY)
def garbage_for_empty():
    return operator(
        "garbage_for_empty",
        lambda x: x.sum(0) if x.numel() else torch.full((2**21,), 1.0),
        fake=lambda x: x.new_empty(x.shape[1:]),
    )


# Registration, and functions that are no operators.


@planted("registration", traps.DOUBLE)
def registered_twice():
    op = operator("registered_twice", lambda x: x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _library.impl("registered_twice", lambda x: x * 3, "CPU", allow_override=True)
    return op


@planted("eager", traps.NO_KERNEL)
def no_kernel():
    return operator("no_kernel", lambda x: x, keys=("CUDA",))


@planted("fork", traps.FORK)
def lost_in_a_fork():
    def kernel(x: Tensor) -> Tensor:
        if os.getpid() != OWN_PROCESS:
            raise RuntimeError("the pool of workers is gone")
        return x * 2

    return operator("lost_in_a_fork", kernel)


def numpy_double(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy() * 2)


@planted("trace", traps.BAKED)
def baked():
    return numpy_double


@planted("script", traps.NOT_SCRIPTABLE)
def not_scriptable():
    return numpy_double


class Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return opaque(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@torch.compiler.disable
def opaque(x: Tensor) -> Tensor:
    return x * 2


@planted("compile", traps.OPAQUE_FUNCTION)
def opaque_function():
    return Opaque.apply


@planted("trace", traps.PYTHON_OP)
def python_in_the_graph():
    return Opaque.apply


@planted("compile", traps.GRAPH_BREAK)
def graph_break():
    return opaque


@planted("subclass", traps.SUBCLASS)
def reads_the_data():
    return lambda x: torch.frombuffer((x.detach() * 2).numpy().tobytes(), dtype=x.dtype).view(
        x.shape
    )


def everything() -> Iterable[Defect]:
    return tuple(DEFECTS)
