"""`fusewheel.explain` and the report it returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import fusewheel
import pytest
import torch
import torch.nn.functional as F
from fusewheel.compiler import GraphBreak, Refusal, Replacement, Report

Tensor = torch.Tensor


class Net(torch.nn.Module):
    """Has a match, a near miss, a buffer that changes and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Gate, normalise and drop."""
        h = F.silu(self.lin(x)) * x
        h = self.norm(F.silu(h) + scale)
        return F.dropout(h, training=self.training)


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    report = fusewheel.explain(Net(), torch.randn(4, 8), scale=2.0)
    (replacement,) = report.replacements
    assert (replacement.pattern, replacement.operator, replacement.count) == (
        "silu_mul",
        "fusewheel::silu_mul",
        1,
    )
    path, _, line = replacement.source.rpartition(":")
    assert path == __file__ and int(line) > 0
    (refusal,) = report.refusals
    assert "not multiplied" in refusal.reason and refusal.pattern == "silu_mul"
    assert replacement.code == "h = F.silu(self.lin(x)) * x"
    assert refusal.code == "h = self.norm(F.silu(h) + scale)"
    assert not capsys.readouterr().out
    assert str(report).startswith("fusewheel: 1 replacements in 1 graph")


def test_json() -> None:
    """Other programs read these keys."""
    report = json.loads(fusewheel.explain(Net(), torch.randn(4, 8)).to_json())
    lists = {"replacements", "refusals", "attentions", "graph_breaks", "programs"}
    assert report.keys() == {"graphs", "replaced", "bytes_saved"} | lists
    assert report["graphs"] == report["replaced"] == 1 and report["graph_breaks"] == []
    (replacement,), (refusal,) = report["replacements"], report["refusals"]
    assert replacement.keys() == {"pattern", "operator", "count", "source", "code", "bytes_saved"}
    assert refusal.keys() == {"pattern", "count", "source", "reason", "code"}
    attend = lambda x: F.scaled_dot_product_attention(x, x, x)  # noqa: E731
    (call,) = json.loads(fusewheel.explain(attend, torch.randn(1, 2, 3, 4)).to_json())["attentions"]
    assert call.keys() == {"count", "source", "mask", "shapes", "code"}
    assert report["bytes_saved"] == replacement["bytes_saved"] == 2 * 4 * 8 * 4


def test_bytes_saved() -> None:
    """SwiGLU: silu reads one tensor and writes one, the product reads two and writes one."""
    x, w = torch.randn(4, 8), torch.randn(8)

    def saved(function: Any, *inputs: Tensor, dynamic: bool | None = None) -> int:
        for tensor in inputs if dynamic else ():
            torch._dynamo.mark_dynamic(tensor, 0)
        report = fusewheel.explain(function, *inputs)
        assert report.count() == len(report.replacements) == 1, report
        return report.bytes_saved

    one = x.numel() * 4
    gated = lambda g, u: F.silu(g) * u  # noqa: E731
    assert saved(gated, x, x + 1) == 2 * one
    assert saved(gated, torch.randn(4, 8), torch.randn(4, 8), dynamic=True) == 2 * one
    assert saved(gated, x.bfloat16(), x.bfloat16()) == one
    # The operator takes the tensor that both are views of; these cost nothing.
    assert saved(lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], x) == one
    # pow, mean, + eps, rsqrt, x * root and * w against x, w, y; the operator writes rstd too.
    row, norm = x.shape[0] * 4, lambda x, w: x * (x.pow(2).mean(-1, True) + 1e-6).rsqrt() * w
    unfused = 2 * one + (one + row) + 2 * row + 2 * row + (2 * one + row) + (2 * one + 32)
    assert saved(norm, x, w) == unfused - (2 * one + 32 + row)


def test_source_is_not_in_torch() -> None:
    report = fusewheel.explain(lambda x, w: F.rms_norm(x, (4,), w), torch.ones(2, 4), torch.ones(4))
    (replacement,) = report.replacements
    assert replacement.source.startswith(__file__)


def test_model_is_not_changed() -> None:
    model, x = Net(), torch.randn(4, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    fusewheel.explain(model, x)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


def test_compiled_code_is_kept() -> None:
    """Explain adds nothing to what Dynamo holds for the model, nor drops it."""
    model, x = Net(), torch.randn(4, 8)
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm

    compiled = torch.compile(model, backend=backend)
    compiled(x)
    for _ in range(12):  # more often than Dynamo recompiles one function
        report = fusewheel.explain(compiled, x)
        assert report.counts() == {"silu_mul": 1}
    compiled(x)
    assert len(graphs) == 1


def test_graph_break() -> None:
    def broken(x: Tensor) -> Tensor:
        y = F.silu(x) * x
        torch._dynamo.graph_break()
        return F.silu(y) * x

    report = fusewheel.explain(broken, torch.randn(4))
    assert report.graphs == 2
    assert report.count("silu_mul") == 2
    (found,) = report.graph_breaks
    assert "graph_break" in found.reason
    assert found.code == "torch._dynamo.graph_break()"
    assert found.source.startswith(__file__)
    assert "break" in str(report)


def test_memory_traffic_is_only_estimated_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    estimate = "fusewheel.compiler.match.rewrite.traffic"
    monkeypatch.setattr(estimate, lambda nodes: seen.append(nodes) or 0)
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(Net(), backend="fusewheel", options={"inner": "eager"})
    compiled(torch.randn(2, 8))
    assert torch._dynamo.utils.counters["fusewheel"] == {"silu_mul": 1}
    assert not seen
    fusewheel.explain(Net(), torch.randn(2, 8))
    assert len(seen) == 2  # before and after


def test_errors_of_the_model_are_raised() -> None:
    with pytest.raises(TypeError, match="missing"):
        fusewheel.explain(Net())


def test_nothing_found() -> None:
    report = fusewheel.explain(torch.nn.ReLU(), torch.randn(3))
    assert report.count() == 0
    assert "nothing was recognised" in str(report)


def test_table() -> None:
    report = Report(
        (Replacement("rms_norm", "fusewheel::rms_norm", 5, "/a/model.py:7", "y = n(x)", 3 << 19),),
        (Refusal("rope", 2, "/a/model.py:31", "cos requires a gradient", "q = rotate(q)"),),
        2,
        (GraphBreak("print was called\nand more", "/a/model.py:40"),),
    )
    assert str(report).splitlines() == [
        "fusewheel: 5 replacements in 2 graphs, about 1.5 MiB of memory traffic less",
        "          pattern   count  saved    source",
        "replaced  rms_norm  5      1.5 MiB  model.py:7   fusewheel::rms_norm",
        "          | y = n(x)",
        "kept      rope      2               model.py:31  cos requires a gradient",
        "          | q = rotate(q)",
        "break               1               model.py:40  print was called",
    ]
    assert report.count() == report.count("rms_norm") == 5


def test_log_of_torch() -> None:
    """TORCH_LOGS takes the name of the package, before that is imported."""
    code = (
        "import torch, torch.nn.functional as F\n"
        "f = torch.compile(lambda g, u: F.silu(F.silu(g) * u), backend='fusewheel', "
        "options={'inner': 'eager'})\n"
        "f(torch.ones(2), torch.ones(2))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TORCH_LOGS": "+fusewheel"},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in run.stderr.splitlines() if "fusewheel/compiler" in line]
    assert "silu_mul replaced by fusewheel::silu_mul, saves about 16 B" in lines[0], run.stderr
    assert "silu_mul kept: silu is not multiplied by another tensor" in lines[1], run.stderr
