"""Derivatives of every operator: first, second, forward mode, torch.func, in-place rules."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from fusewheel._operator import Make, Operator
from oracle import assert_as_good_as_eager, tensors_of, to_dtype
from torch import Tensor
from torch.autograd import forward_ad


def small_samples(operator: Operator, make: Make) -> Iterator[tuple]:
    """Samples cheap enough for finite differences, which also want every element in one place."""
    for arguments in operator.samples(make):
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        if all(t.numel() <= 200 and 0 not in t.stride() for t in tensors):
            yield arguments


def functional(operator: Operator):
    """The operator as a function of its tensors with tensor results, whatever it writes."""
    return without_writing(operator, operator.overload)


def eager(operator: Operator):
    return without_writing(operator, operator.reference)


def without_writing(operator: Operator, write):
    if operator.mutates is None:
        return write

    def function(*arguments):
        arguments = list(arguments)
        # A fresh output each time: finite differences call the function over and over.
        out = arguments[operator.mutates]
        out = out.clone() if operator.in_place else torch.zeros_like(out).detach()
        arguments[operator.mutates] = out
        write(*arguments)
        return out

    return function


def differentiable(operator: Operator, arguments: tuple) -> list[int]:
    return [
        i
        for i, a in enumerate(arguments)
        if isinstance(a, Tensor)
        and (operator.in_place or i != operator.mutates)
        and a.is_floating_point()
    ]


def leaves(operator: Operator, arguments: tuple) -> tuple:
    wanted = differentiable(operator, arguments)
    return tuple(
        a.detach().requires_grad_(i in wanted) if isinstance(a, Tensor) else a
        for i, a in enumerate(arguments)
    )


def test_gradcheck_and_gradgradcheck(operator: Operator):
    checked = 0
    for arguments in small_samples(operator, Make(torch.float64)):
        inputs = leaves(operator, arguments)
        function = functional(operator)
        assert torch.autograd.gradcheck(function, inputs, check_undefined_grad=False)
        assert torch.autograd.gradgradcheck(function, inputs, check_undefined_grad=False)
        checked += 1
    assert checked >= 2


def test_gradients_as_good_as_eager(operator: Operator, dtype: torch.dtype):
    for index, arguments in enumerate(operator.samples(Make(dtype, seed=11))):
        wanted = differentiable(operator, arguments)

        def gradients(function, arguments, wanted=wanted, index=index):
            inputs = leaves(operator, arguments)
            outputs = [o for o in tensors_of(function(*inputs)) if o.requires_grad]
            make = Make(dtype, seed=100 + index)
            seeds = [make(*o.shape).to(o.dtype) for o in outputs]
            return torch.autograd.grad(
                outputs, [inputs[i] for i in wanted], seeds, materialize_grads=True
            )

        got = gradients(functional(operator), arguments)
        base = gradients(eager(operator), arguments)
        exact = gradients(eager(operator), to_dtype(arguments, torch.float64))
        for k, triple in enumerate(zip(got, base, exact, strict=True)):
            assert_as_good_as_eager(*triple, what=f"{operator.name}, sample {index}, grad {k}")


def test_only_what_is_asked_gets_a_gradient(operator: Operator):
    for arguments in operator.samples(Make(seed=12)):
        for index in differentiable(operator, arguments):
            inputs = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
            inputs[index].requires_grad_()
            outputs = tensors_of(functional(operator)(*inputs))
            sum(o.sum() for o in outputs if o.requires_grad).backward()
            for i, a in enumerate(inputs):
                assert not isinstance(a, Tensor) or (a.grad is not None) == (i == index)


def test_forward_mode(operator: Operator):
    for arguments in small_samples(operator, Make(torch.float64, seed=13)):
        wanted = differentiable(operator, arguments)
        make = Make(torch.float64, seed=14)
        tangents = {i: make(*arguments[i].shape) for i in wanted}

        def tangent_of(function, arguments=arguments, tangents=tangents):
            with forward_ad.dual_level():
                dual = [
                    forward_ad.make_dual(a, tangents[i]) if i in tangents else a
                    for i, a in enumerate(arguments)
                ]
                return [forward_ad.unpack_dual(o).tangent for o in tensors_of(function(*dual))]

        for got, want in zip(
            tangent_of(functional(operator)), tangent_of(eager(operator)), strict=True
        ):
            torch.testing.assert_close(got, want)


def test_torch_func(operator: Operator):
    """grad, jvp, vjp, jacrev, hessian and vmap(grad) against the reference."""
    for arguments in small_samples(operator, Make(torch.float64, seed=15)):
        index = differentiable(operator, arguments)[0]
        if not 0 < arguments[index].numel() <= 60 or operator.mutates is not None:
            continue

        def scalar(function, arguments=arguments, index=index):
            def run(value):
                outputs = function(*arguments[:index], value, *arguments[index + 1 :])
                return sum((o * o).sum() for o in tensors_of(outputs))

            return run

        x = arguments[index]
        got, want = scalar(operator.overload), scalar(operator.reference)
        direction = torch.ones_like(x)
        torch.testing.assert_close(torch.func.grad(got)(x), torch.func.grad(want)(x))
        torch.testing.assert_close(
            torch.func.jvp(got, (x,), (direction,)), torch.func.jvp(want, (x,), (direction,))
        )
        torch.testing.assert_close(torch.func.hessian(got)(x), torch.func.hessian(want)(x))
        batch = torch.stack([x, 2 * x, x + 1])
        torch.testing.assert_close(
            torch.func.vmap(torch.func.grad(got))(batch),
            torch.stack([torch.func.grad(want)(row) for row in batch]),
        )
        torch.testing.assert_close(
            torch.func.vmap(got)(batch), torch.stack([want(row) for row in batch])
        )


def test_no_grad_and_inference_mode_leave_no_graph(operator: Operator):
    for arguments in operator.samples(Make(seed=16)):
        inputs = leaves(operator, arguments)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                for output in tensors_of(functional(operator)(*inputs)):
                    assert not output.requires_grad
