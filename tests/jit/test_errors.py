"""Errors of the kernels out of TorchScript's interpreter."""

from __future__ import annotations

import pytest
import torch
from fusewheel import ops
from fusewheel.dispatch.operator import Make, Operator
from torch import Tensor, nn


class Calls(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return torch.ops.fusewheel.silu_mul(gate, up)


def test_the_message_of_a_kernel_arrives():
    module = torch.jit.script(Calls())
    with pytest.raises(RuntimeError) as caught:
        module(torch.ones(2, 3), torch.ones(2, 4))
    text = str(caught.value)
    assert text.startswith("The following operation failed in the TorchScript interpreter")
    assert "up of shape [2, 4] must broadcast" in text
    assert "test_errors.py" in text
    assert "frame #" not in text


def bad_calls(operator: Operator) -> list:
    found = []
    for bad in operator.refusals(Make()):
        # TorchScript itself refuses None for a tensor.
        arguments = operator.overload._schema.arguments
        kinds = [str(argument.type) for argument in arguments]
        given = zip(bad.arguments, kinds, strict=False)
        if not any(value is None and kind == "Tensor" for value, kind in given):
            found.append(bad)
    return found


@pytest.mark.parametrize("operator", ops.operators(), ids=lambda o: o.name)
def test_every_refusal_arrives_as_it_is(operator: Operator):
    """The same type and message as out of an eager call."""
    names = [argument.name for argument in operator.overload._schema.arguments]
    kinds = [str(argument.type) for argument in operator.overload._schema.arguments]
    parameters = ", ".join(f"{n}: {k}" for n, k in zip(names, kinds, strict=True))
    call = f"torch.ops.fusewheel.{operator.name}({', '.join(names)})"
    function = torch.jit.CompilationUnit(f"def call({parameters}):\n    return {call}\n").call
    defaults = [argument.default_value for argument in operator.overload._schema.arguments]
    for bad in bad_calls(operator):
        arguments = (*bad.arguments, *defaults[len(bad.arguments) :])
        with pytest.raises(RuntimeError, match=bad.message) as scripted:
            function(*arguments)
        with pytest.raises(RuntimeError, match=bad.message):
            operator.overload(*arguments)
        assert "frame #" not in str(scripted.value)
