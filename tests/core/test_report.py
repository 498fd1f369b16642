"""Every report has one shape: text, a dictionary, and JSON that reads back as the dictionary."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import fusewheel
import pytest
from demo.examples import example, example_report
from fusewheel._core.report import BaseReport, plain
from fusewheel.cli.bench import Timing, Timings
from fusewheel.cli.info import BackendInfo, Info
from fusewheel.cli.operators import OperatorInfo, Operators
from fusewheel.compiler.match import report as compiler
from fusewheel.demo.show.report import Report as DemoReport
from fusewheel.doctor.outcome import Outcome, Status
from fusewheel.doctor.report import Report as DoctorReport
from fusewheel.quantization.report import QuantizationReport, Skip, Swap
from fusewheel.transformers._patch import PatchReport

REPORTS = (
    compiler.Report(
        (compiler.Replacement("rope", "fusewheel::rope", 2, "model.py:7", "y = r(x)"),),
        (compiler.Refusal("gelu", 1, "model.py:9", "another formula"),),
        2,
        (compiler.GraphBreak("print was called", "model.py:8"),),
        (compiler.AttentionCall(1, "model.py:3", "causal", "[2, 4]"),),
    ),
    DoctorReport("ns::op", (Outcome("eager", "eager", Status.FAILS, "why", "trap", "mend"),)),
    QuantizationReport("int4", (Swap("a", 8, 2, True),), (Skip("b", "too small"),), 16, 10),
    example_report(example("eager"), example("fusewheel", speed=2.0)),
    PatchReport({"norm": "rms_norm"}, {"head": "it has a hook"}),
    Info(
        fusewheel="0.1.0",
        python="3.11.7 (CPython)",
        torch="2.13.0",
        system="Linux x86_64",
        processor="some CPU",
        instructions="AVX2",
        threads=2,
        backends=(BackendInfo("cpu", "0.1.0", "CPU", True, ""),),
        packages={"numpy": "2.0"},
        environment={},
        operators=("rms_norm",),
    ),
    Operators((OperatorInfo("rms_norm", "A norm.", "rms_norm(Tensor x) -> Tensor", ("CPU",)),)),
    Timings({"threads": 2}, (Timing("gelu", "[8]", "float32", 0.002, 0.001, 2.0),)),
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__module__)
def test_json_reads_back_as_the_dictionary(report):
    assert json.loads(report.to_json()) == report.to_dict()
    assert "\n" in report.to_json()
    assert json.loads(report.to_json(indent=None)) == report.to_dict()
    assert "\n" not in report.to_json(indent=None)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__module__)
def test_the_text_is_not_the_representation(report):
    assert str(report).strip() and str(report) != repr(report)


def test_every_report_is_tried():
    for found in pkgutil.walk_packages(fusewheel.__path__, "fusewheel."):
        spec = importlib.util.find_spec(found.name)
        if spec is not None and "(BaseReport)" in Path(spec.origin or "").read_text():
            importlib.import_module(found.name)
    ours = {kind for kind in BaseReport.__subclasses__() if kind.__module__.startswith("fusewheel")}
    assert ours == {type(report) for report in REPORTS}


def test_totals_are_in_the_dictionary():
    found, doctor, quantized, demo, *_ = (report.to_dict() for report in REPORTS)
    assert (found["replaced"], found["bytes_saved"]) == (2, 0)
    assert doctor["healthy"] is False
    assert doctor["outcomes"][0]["status"] == "fails"
    assert quantized["swapped"] == [
        {"name": "a", "bytes_before": 8, "bytes_after": 2, "calibrated": True}
    ]
    assert demo["rows"][0]["ratios"] == {"eager": 2.0, "inductor": None}
    assert isinstance(REPORTS[3], DemoReport)


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: tuple[int, ...]
    colour: Colour


def test_plain_values():
    given = {1: Point((1, 2), Colour.RED), "none": [None, 1.5, True]}
    assert plain(given) == {"1": {"x": [1, 2], "colour": "red"}, "none": [None, 1.5, True]}
