"""Gradients of every operator in every dtype, before the oracle."""

from __future__ import annotations

import torch
from calls import differentiable, eager, functional
from contracts import GRADIENT_CONTRACTS
from fusewheel.dispatch.operator import Make, Operator
from neighbours import assert_call_as_good_as_eager
from oracle import tensors_of
from torch import Tensor


def leaves(operator: Operator, arguments: tuple) -> tuple:
    wanted = differentiable(operator, arguments)
    return tuple(
        a.detach().requires_grad_(i in wanted) if isinstance(a, Tensor) else a
        for i, a in enumerate(arguments)
    )


def test_gradients_as_good_as_eager(operator: Operator, dtype: torch.dtype):
    """The gradients of the results are arguments too: eager is also judged beside them. What comes
    back to the input of a linear layer depends on nothing else that has neighbours.
    """
    seed = torch.initial_seed()
    functions = functional(operator), eager(operator)
    for index, given in enumerate(operator.samples(Make(dtype, seed=seed))):
        wanted = differentiable(operator, given)
        make = Make(dtype, seed=seed + 1 + index)
        outputs = tensors_of(functions[0](*leaves(operator, given)))
        arguments = (*given, *(make(*o.shape).to(o.dtype) for o in outputs))

        count = len(given)

        def gradients(function, arguments, wanted=wanted, count=count):
            inputs = leaves(operator, arguments[:count])
            outputs = tensors_of(function(*inputs))
            pairs = zip(outputs, arguments[count:], strict=True)
            kept = [(o, grad.to(o.dtype)) for o, grad in pairs if o.requires_grad]
            outputs, grads = zip(*kept, strict=True)
            return torch.autograd.grad(
                outputs, [inputs[i] for i in wanted], grads, materialize_grads=True
            )

        contract = GRADIENT_CONTRACTS.get(operator.name)

        def allowed(*arguments, contract=contract, wanted=wanted):
            found = contract(*arguments)
            return tuple(found[i] for i in wanted)

        assert_call_as_good_as_eager(
            gradients,
            *functions,
            arguments,
            f"{operator.name}, sample {index}, grad",
            contract=allowed if contract else None,
        )


def test_only_what_is_asked_gets_a_gradient(operator: Operator):
    for arguments in operator.samples(Make(seed=torch.initial_seed())):
        for index in differentiable(operator, arguments):
            inputs = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
            inputs[index].requires_grad_()
            outputs = tensors_of(functional(operator)(*inputs))
            sum(o.sum() for o in outputs if o.requires_grad).backward()
            for i, a in enumerate(inputs):
                assert not isinstance(a, Tensor) or (a.grad is not None) == (i == index)
