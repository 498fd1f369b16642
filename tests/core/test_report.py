"""Every report has one shape: text, a dictionary, and JSON that reads back as the dictionary."""

from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import dataclass
from enum import Enum

import fusewheel
import pytest
from demo.examples import example, example_report
from fusewheel._core.report import BaseReport, plain
from fusewheel.compiler.match import report as compiler
from fusewheel.demo.show.report import Report as DemoReport
from fusewheel.doctor.outcome import Outcome, Status
from fusewheel.doctor.report import Report as DoctorReport
from fusewheel.quantization.report import QuantizationReport, Skip, Swap

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
        if found.name.rpartition(".")[2] == "report":
            importlib.import_module(found.name)
    ours = {kind for kind in BaseReport.__subclasses__() if kind.__module__.startswith("fusewheel")}
    assert ours == {type(report) for report in REPORTS}


def test_totals_are_in_the_dictionary():
    found, doctor, quantized, demo = (report.to_dict() for report in REPORTS)
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
