"""`fusewheel.explain` and the report it returns."""

from __future__ import annotations

import json
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
    assert capsys.readouterr().out == f"{report}\n"
    assert json.loads(report.to_json())["replacements"][0]["count"] == 1


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
    assert found.source.startswith(__file__)
    assert "break" in str(report)


def test_errors_of_the_model_are_raised() -> None:
    with pytest.raises(TypeError, match="missing"):
        fusewheel.explain(Net())


def test_nothing_found() -> None:
    report = fusewheel.explain(torch.nn.ReLU(), torch.randn(3))
    assert report.count() == 0
    assert "nothing was recognised" in str(report)


def test_table() -> None:
    report = Report(
        (Replacement("rms_norm", "fusewheel::rms_norm", 5, "/a/model.py:7"),),
        (Refusal("rope", 2, "/a/model.py:31", "cos requires a gradient"),),
        2,
        (GraphBreak("print was called\nand more", "/a/model.py:40"),),
    )
    assert str(report).splitlines() == [
        "fusewheel: 5 replacements in 2 graphs",
        "          pattern   count  source",
        "replaced  rms_norm  5      model.py:7   fusewheel::rms_norm",
        "kept      rope      2      model.py:31  cos requires a gradient",
        "break               1      model.py:40  print was called",
    ]
    assert report.count() == report.count("rms_norm") == 5
