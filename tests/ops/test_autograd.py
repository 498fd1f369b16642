"""Gradients of every operator in every dtype, before the oracle."""

from __future__ import annotations

import torch
from calls import differentiable, eager, functional
from fusewheel.dispatch.operator import Make, Operator
from oracle import assert_as_good_as_eager, tensors_of, to_dtype
from torch import Tensor


def leaves(operator: Operator, arguments: tuple) -> tuple:
    wanted = differentiable(operator, arguments)
    return tuple(
        a.detach().requires_grad_(i in wanted) if isinstance(a, Tensor) else a
        for i, a in enumerate(arguments)
    )


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
