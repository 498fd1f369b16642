"""Every operator under opcheck, torch.compile, export and TorchScript."""

from __future__ import annotations

import inspect
import io

import pytest
import torch
from fusewheel._operator import Make, Operator
from oracle import tensors_of
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def first_samples(operator: Operator, make: Make, count: int = 3) -> list[tuple]:
    found = []
    for arguments in operator.samples(make):
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        if all(t.dim() > 0 and t.numel() > 1 and 0 not in t.stride() for t in tensors):
            found.append(arguments)
        if len(found) == count:
            break
    return found


def with_results(operator: Operator):
    if operator.mutates is None:
        return lambda *arguments: operator.overload(*arguments)

    def function(*arguments):
        before, after = arguments[: operator.mutates], arguments[operator.mutates + 1 :]
        out = arguments[operator.mutates]
        out = (out if operator.in_place else out.detach()).clone()
        operator.overload(*before, out, *after)
        return out * 1

    return function


def test_opcheck(operator: Operator):
    for grad in (False, True):
        for arguments in first_samples(operator, Make()):
            arguments = tuple(
                a.detach().requires_grad_(grad and i != operator.mutates and a.is_floating_point())
                if isinstance(a, Tensor)
                else a
                for i, a in enumerate(arguments)
            )
            torch.library.opcheck(operator.overload, arguments)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile_forward_and_backward(operator: Operator, dynamic: bool):
    function = with_results(operator)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for arguments in first_samples(operator, Make(seed=21)):
        inputs = [
            a.detach().requires_grad_(
                (operator.in_place or i != operator.mutates) and a.is_floating_point()
            )
            if isinstance(a, Tensor)
            else a
            for i, a in enumerate(arguments)
        ]
        wanted = [a for a in inputs if isinstance(a, Tensor) and a.requires_grad]
        results = []
        for run in (function, compiled):
            outputs = tensors_of(run(*inputs))
            loss = sum((o * o).sum() for o in outputs)
            results.append((outputs, torch.autograd.grad(loss, wanted)))
        torch.testing.assert_close(results[1], results[0])


def test_a_second_size_does_not_recompile(operator: Operator):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(with_results(operator), backend=counter, fullgraph=True, dynamic=True)
    arguments = first_samples(operator, Make(seed=22), 1)[0]
    leading = next(a for a in arguments if isinstance(a, Tensor)).shape[0]
    frames = []
    for repeat in (5, 7):
        # More rows in every tensor that has that leading dimension; sizes that no other dimension
        # has, because Dynamo takes equal sizes for one and the same.
        compiled(
            *(
                torch.cat([a.contiguous()] * repeat) if _has_rows(a, leading) else a
                for a in arguments
            )
        )
        frames.append(counter.frame_count)
    # A float argument alone makes Dynamo trace its first frame twice.
    assert frames[0] == frames[1]


def _has_rows(argument, leading: int) -> bool:
    return isinstance(argument, Tensor) and argument.shape[0] == leading and leading > 1


def test_export_round_trip(operator: Operator):
    class Module(torch.nn.Module):
        def forward(self, *arguments):
            return with_results(operator)(*arguments)

    arguments = first_samples(operator, Make(seed=23), 1)[0]
    program = torch.export.export(Module(), arguments)
    assert any(n.target is operator.overload for n in program.graph.nodes) or (
        operator.mutates is not None
    )
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    again = torch.export.load(buffer).module()
    torch.testing.assert_close(
        tensors_of(again(*arguments)), tensors_of(with_results(operator)(*arguments))
    )


def test_torchscript_trace_save_and_load(operator: Operator):
    arguments = first_samples(operator, Make(seed=24), 1)[0]
    tensors = tuple(a for a in arguments if isinstance(a, Tensor))

    def function(*given):
        rest = iter(given)
        return with_results(operator)(
            *(next(rest) if isinstance(a, Tensor) else a for a in arguments)
        )

    traced = torch.jit.trace(function, tensors)
    assert f"fusewheel::{operator.name}" in str(traced.inlined_graph)
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    torch.testing.assert_close(loaded(*tensors), function(*tensors))


def test_public_functions_script(operator: Operator):
    if operator.function is None:
        return
    arguments = first_samples(operator, Make(seed=25), 1)[0]
    scripted = torch.jit.script(operator.function)
    # Up to the first that the public function takes by name and the operator by number.
    parameters = inspect.signature(operator.function).parameters.values()
    words = [p.annotation == "str" for p in parameters] + [True]
    given = arguments[: words.index(True)]
    copies = [a.clone() if isinstance(a, Tensor) else a for a in given]
    torch.testing.assert_close(scripted(*given), operator.function(*copies))


def test_inductor_trains_through_a_chain_of_operators():
    import fusewheel

    def model(x, weight, cos, sin):
        h = fusewheel.rms_norm(x, weight)
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
