"""Public functions under TorchScript, and a chain of operators under Inductor."""

from __future__ import annotations

import inspect

import pytest
import torch
from calls import WORDS
from fusewheel.dispatch.operator import Make, Operator
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def first_sample(operator: Operator, make: Make) -> tuple:
    for arguments in operator.samples(make):
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        if all(t.dim() > 0 and t.numel() > 1 and 0 not in t.stride() for t in tensors):
            return arguments
    raise AssertionError(f"{operator.name} has no such sample")


def test_public_functions_script(operator: Operator):
    if operator.function is None:
        return
    arguments = first_sample(operator, Make(seed=25))
    parameters = inspect.signature(operator.function).parameters.values()
    if operator.name in ("rms_norm", "layer_norm"):
        x, *rest = arguments
        arguments = x, [x.shape[-1]], *rest
    elif operator.name == "cross_entropy":
        arguments = arguments[:3]
    scripts = getattr(operator.function, "__prepare_scriptable__", lambda: operator.function)()
    if any(p.kind is p.KEYWORD_ONLY for p in inspect.signature(scripts).parameters.values()):
        with pytest.raises(torch.jit.frontend.NotSupportedError, match="keyword-only"):
            torch.jit.script(operator.function)
        return
    scripted = torch.jit.script(operator.function)
    given = []
    for parameter, value in zip(parameters, arguments, strict=False):
        is_word = parameter.annotation == "str" or isinstance(parameter.default, str)
        if is_word and parameter.name not in WORDS:
            break  # the public function takes it by name and the operator by number
        given.append(WORDS.get(parameter.name, value))
    copies = [a.clone() if isinstance(a, Tensor) else a for a in given]
    torch.testing.assert_close(scripted(*given), operator.function(*copies))


def test_inductor_trains_through_a_chain_of_operators():
    import fusewheel

    def model(x, weight, cos, sin):
        h = fusewheel.rms_norm(x, weight.shape, weight)
        h = fusewheel.silu_mul(h, fusewheel.muladd(h, h, 0.5))
        q, k = fusewheel.rope(h, h * 0.5, cos, sin)
        out = torch.empty_like(q)
        fusewheel.add_out(q, k, out)
        return fusewheel.mul(out * 0.1, h).sum()

    make = Make(requires_grad=True, seed=26)
    inputs = (make(2, 3, 5, 16), make(16), make(5, 16).detach(), make(5, 16).detach())
    want = torch.autograd.grad(model(*inputs), inputs[:2])
    got = torch.autograd.grad(torch.compile(model, fullgraph=True)(*inputs), inputs[:2])
    torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_write_to_an_input_is_recorded(operator: Operator):
    """AOTAutograd leaves out of the gradient what is written while gradients are off."""
    index = operator.mutates
    if index is None:
        return

    def gradient(call):
        arguments = list(first_sample(operator, Make(seed=27)))
        leaf = arguments[0].requires_grad_()
        arguments[0] = leaf * 2
        written = arguments[index]
        call(*arguments)
        weights = torch.arange(written.numel(), dtype=written.dtype).view_as(written)
        return torch.autograd.grad((written * weights).sum(), leaf)

    def function(*arguments):
        operator.overload(*arguments)

    compiled = torch.compile(function, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled), gradient(function))
