"""What exported programs have and captured graphs do not: signatures, regions, lost gradients."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import fusewheel
import pytest
import tiny_decoder
import torch
import torch.nn.functional as F
from fusewheel.compiler import Report, rewrite
from fusewheel.compiler.ir.pattern import Context
from fusewheel.compiler.patterns.silu_mul import PATTERN as SILU_MUL
from oracle import assert_program_as_good_as_eager, tensors_of
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.nn import Module

# Raised inside torch when it copies the description of a program.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


def norm(x: Tensor, weight: Tensor, eps: Any = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Net(Module):
    """A weight, and whatever a test wants to do with it."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.rand(16))
        self.register_buffer("state", torch.zeros(3, 16))
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)


def exported(body: Any) -> tuple[ExportedProgram, Report, Tensor]:
    """A program, its report and its input; outputs and buffer are judged here."""
    net, x = Net(body), torch.randn(3, 16)
    program = fusewheel.export(net, (x,))
    module, wide = program.module(), Net(body).double()
    wide.load_state_dict(net.state_dict())
    with torch.no_grad():
        runs = [tensors_of(f(x.to(f.weight.dtype))) for f in (module, net, wide)]
    states = [f.state for f in (module, net, wide)]
    for got, eager, exact in zip(*runs, strict=True):
        assert_program_as_good_as_eager(got, eager, exact)
    assert_program_as_good_as_eager(*states)
    return program, fusewheel.explain(program), x


@pytest.mark.matrix
def test_an_output_is_replaced() -> None:
    """The signature names the nodes of the outputs."""
    program, report, _ = exported(lambda net, x: (x + 1, norm(x, net.weight)))
    assert report.counts() == {"rms_norm": 1}
    names = [spec.arg.name for spec in program.graph_signature.output_specs]
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    assert names == [node.name for node in output.args[0]]


def test_a_buffer_takes_a_replaced_value() -> None:
    def body(net: Net, x: Tensor) -> Tensor:
        net.state.copy_(norm(x, net.weight))
        return net.state + 1

    program, report, x = exported(body)
    assert report.counts() == {"rms_norm": 1}
    functional = program.run_decompositions()
    assert list(functional.graph_signature.buffers_to_mutate.values()) == ["state"]
    module = functional.module()
    with torch.no_grad():
        new = norm(x, program.state_dict["weight"])
        torch.testing.assert_close(module(x), new + 1)
        torch.testing.assert_close(module.state, new)


def test_a_buffer_takes_a_value_of_a_functional_program() -> None:
    """There the buffer's new value is an output, named in the signature."""

    def body(net: Net, x: Tensor) -> Tensor:
        net.state.copy_(norm(x, net.weight))
        return x + 1

    net, x = Net(body), torch.randn(3, 16)
    program = fusewheel.export(torch.export.export(net, (x,)).run_decompositions())
    assert fusewheel.explain(program).counts() == {"rms_norm": 1}
    module = program.module()
    with torch.no_grad():
        module(x)
        torch.testing.assert_close(module.state, norm(x, net.weight))


def test_a_value_that_is_written_is_kept() -> None:
    def body(net: Net, x: Tensor) -> Tensor:
        gate = x * 2
        y = F.silu(gate)
        gate.add_(1)
        return y * x + gate

    _, report, _ = exported(body)
    assert report.counts() == {}
    assert "writes in place" in report.refusals[0].reason


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_regions_without_gradients(mode: Any) -> None:
    """Export puts them into bodies of their own."""

    def body(net: Net, x: Tensor) -> Tensor:
        with mode():
            y = norm(x, net.weight)
        return F.silu(y) * x

    with torch.set_grad_enabled(mode is torch.no_grad):
        program, report, _ = exported(body)
    assert report.counts() == {"rms_norm": 1, "silu_mul": 1}
    assert "wrap_with_set_grad_enabled" in program.graph_module.code


def test_regions_of_autocast() -> None:
    def body(net: Net, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = F.linear(norm(x, net.weight), net.weight.diag())
            y = F.silu(y) * F.linear(x, net.weight.diag())
        return norm(y.to(x.dtype), net.weight)

    program, report, _ = exported(body)
    assert report.counts() == {"rms_norm": 2, "silu_mul": 1}
    assert "wrap_with_autocast" in program.graph_module.code
    values = [m.graph.nodes for m in program.graph_module.children() if hasattr(m, "graph")]
    inside = [n.meta["val"] for nodes in values for n in nodes if "silu_mul" in n.name]
    assert [value.dtype for value in inside] == [torch.bfloat16]


def test_matchers_know_the_autocast_of_a_region() -> None:
    def body(net: Net, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = F.silu(F.linear(x, net.weight.diag()))
        return F.silu(y) * x

    seen = []

    def match(context: Context, node: torch.fx.Node) -> None:
        if node.target is torch.ops.aten.silu.default:
            seen.append([given[:3] for given in context.modes[node].autocast])

    stock = torch.export.export(Net(body), (torch.randn(3, 16),))
    rewrite(stock.graph_module, patterns=[dataclasses.replace(SILU_MUL, match=match)])
    assert sorted(seen) == [[], [("cpu", torch.bfloat16, True)]]


@pytest.mark.matrix
def test_export_under_autocast() -> None:
    def body(net: Net, x: Tensor) -> Tensor:
        y = F.linear(norm(x, net.weight), net.weight.diag())
        return F.silu(y) * F.linear(x, net.weight.diag())

    net, x = Net(body), torch.randn(3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        stock = torch.export.export(net, (x,))
        program = fusewheel.export(net, (x,))
    for ambient in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=ambient):
            got, want = program.module()(x), stock.module()(x)
        torch.testing.assert_close(got, want)


@pytest.mark.matrix
def test_a_number_that_depends_on_a_size_stays_symbolic() -> None:
    """An epsilon of 1 / batch must not become that of the example."""
    net = Net(lambda net, x: norm(x, net.weight, 1.0 / x.shape[0]))
    x = torch.randn(3, 16)
    program = fusewheel.export(net, (x,), dynamic_shapes=({0: Dim("batch", min=2, max=64)},))
    other = torch.randn(50, 16)
    torch.testing.assert_close(program.module()(other), net(other))
    refusals = fusewheel.explain(program).refusals
    assert [refusal.reason for refusal in refusals] == ["epsilon is not a Python number"] * 2


@pytest.mark.matrix
def test_a_loss_is_exported() -> None:
    """Slices of logits and targets, and constants that serialisation has to know."""

    def body(net: Net, x: Tensor) -> Tensor:
        logits = F.linear(norm(x, net.weight), net.weight.diag())
        target = (x[0] * 10).long().abs().clamp(max=15)[:3]
        return F.cross_entropy(logits[:-1], target[1:])

    program, report, x = exported(body)
    assert report.counts() == {"rms_norm": 1, "linear_cross_entropy": 1}
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    again = torch.export.load(buffer)
    torch.testing.assert_close(again.module()(x), program.module()(x))


@pytest.mark.matrix
@pytest.mark.parametrize("training", [False, True])
def test_gradients(training: bool) -> None:
    """They are right in a program for inference too; only the cost rules differ."""
    model, x = tiny_decoder.decoder(), tiny_decoder.tokens()
    program = fusewheel.export(model, (x,), training=training)
    counts = tiny_decoder.COUNTS | ({"grouped_attention": 0} if training else {})
    found = fusewheel.explain(program)
    assert {name: found.count(name) for name in counts} == counts
    losses = [f(x).square().mean() for f in (program.module(), model)]
    parameters = [list(program.parameters()), list(model.parameters())]
    got, want = (torch.autograd.grad(a, b) for a, b in zip(losses, parameters, strict=True))
    torch.testing.assert_close(got, want)


def test_gradients_of_a_loss() -> None:
    net = Net(lambda net, x: F.cross_entropy(F.linear(x, net.weight.diag()), x.argmax(-1)))
    x = torch.randn(3, 16)
    program = fusewheel.export(net, (x,))
    assert fusewheel.explain(program).counts() == {"linear_cross_entropy": 1}
    losses = program.module()(x), net(x)
    (got,), (want,) = (torch.autograd.grad(loss, net.weight) for loss in losses)
    torch.testing.assert_close(got, want)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    net, x = Net(lambda net, x: norm(F.silu(x) + 1, net.weight)), torch.randn(3, 16)
    stock = torch.export.export(net, (x,))
    code = stock.graph_module.code
    for program in (stock, fusewheel.export(stock), fusewheel.export(net, (x,))):
        report = fusewheel.explain(program)
        assert not capsys.readouterr().out
        assert report.counts() == {"rms_norm": 1} and report.graphs == 1
        assert report.replacements[0].source.startswith(__file__)
        assert "not multiplied" in report.refusals[0].reason
    assert stock.graph_module.code == code
    with pytest.raises(TypeError, match="takes no inputs"):
        fusewheel.explain(stock, x)


def test_bad_input() -> None:
    net, x = Net(lambda net, x: norm(x, net.weight)), torch.randn(3, 16)
    program = torch.export.export(net, (x,))
    with pytest.raises(TypeError, match="args, kwargs and dynamic_shapes are for a module"):
        fusewheel.export(program, (x,))
    with pytest.raises(TypeError, match=r"export: model must be a torch\.nn\.Module, got function"):
        fusewheel.export(lambda x: x, (x,))  # type: ignore[arg-type]
    model, tokens = tiny_decoder.decoder(), (tiny_decoder.tokens(),)
    kept = torch.export.export(model, tokens, preserve_module_call_signature=("norm",))
    with pytest.raises(ValueError, match="preserve_module_call_signature"):
        fusewheel.export(kept)


def test_a_compiled_module_is_exported_as_it_was() -> None:
    net, x = Net(lambda net, x: norm(x, net.weight)), torch.randn(3, 16)
    program = fusewheel.export(torch.compile(net), (x,))
    assert list(program.state_dict) == ["weight", "state"]
