"""The function, the command and their reports, with processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from doctor.defects import DEFECTS
from fusewheel import doctor
from fusewheel.doctor import cli
from fusewheel.doctor.outcome import Status, examine

FEW = ("eager", "gaps", "empty", "fork", "autocast")


def plain_samples():
    return [(torch.ones(3, 4),), torch.ones(2)]


def defect(name: str):
    return next(d for d in DEFECTS if d.name == name)


def test_a_healthy_operator():
    report = doctor.check(torch.ops.aten.neg.default, plain_samples, columns=FEW)
    assert report.healthy
    assert [o.column for o in report.outcomes] == list(FEW)
    assert {o.status for o in report.outcomes} == {Status.WORKS}


def test_a_crash_and_a_hang_are_findings_and_no_end():
    dead = doctor.check(defect("dies_on_empty").faulty, plain_samples, columns=FEW)
    assert dead.traps == ("the process dies",)
    assert "SIGABRT" in dead.of(Status.FAILS)[0].reason
    assert [o.column for o in dead.of(Status.FAILS)] == ["empty"]
    assert len(dead.of(Status.WORKS)) == 4
    stuck = doctor.check(
        defect("hangs_on_empty").faulty, plain_samples, columns=("empty", "eager"), seconds=3
    )
    assert [o.column for o in stuck.outcomes] == ["empty", "eager"]
    assert [o.trap for o in stuck.outcomes] == ["it hangs", ""]
    assert "3 seconds" in stuck.outcomes[0].reason


def test_finite_differences_of_many_elements_are_left_out():
    exp = torch.ops.aten.exp.default
    few, many = (doctor.check(exp, [(torch.ones(n),)], columns=["forward mode"]) for n in (9, 201))
    assert [o.status for o in few.outcomes] == [Status.WORKS]
    (outcome,) = many.outcomes
    assert outcome.status is Status.NOT_APPLICABLE
    assert outcome.reason == "no sample of at most 200 elements"


def test_the_smallest_failing_input_is_shown():
    samples = [(torch.ones(8, 6),), (torch.ones(16, 16),)]
    report = doctor.check(defect("ignores_strides").faulty, samples, columns=["gaps"])
    outcome = report.outcomes[0]
    # A single element has no stride to ignore.
    assert outcome.arguments == "(float32[2, 1])"
    text = str(report)
    assert "strides ignored" in text and "contiguous()" in text and outcome.arguments in text


def test_the_command_writes_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    here = f"{__name__}:plain_samples"
    files = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    status = cli.main(["aten::neg.default", "--samples", here, "--columns", *FEW, *files])
    assert status == 0
    assert "5 works" in capsys.readouterr().out
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["healthy"] and len(report["outcomes"]) == 5
    assert (tmp_path / "r.md").read_text().count("| works |") == 5
    assert defect("ignores_strides").faulty is torch.ops.defects.ignores_strides.default
    status = cli.main(["defects::ignores_strides", "--samples", here, "--columns", "gaps"])
    assert status == 1
    assert "fails" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--columns", "eager", "empty"], ["--import", "json"]])
def test_the_operator_may_stand_after_a_list(option: list[str], capsys: pytest.CaptureFixture[str]):
    samples = ["--samples", f"{__name__}:plain_samples", "--columns", "eager"]
    assert cli.main([*samples, *option, "aten::neg.default"]) == 0
    assert "aten::neg:" in capsys.readouterr().out


@pytest.mark.parametrize("terminal", [True, False])
def test_the_progress_bar(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    doctor.check(
        torch.ops.aten.neg.default,
        plain_samples,
        columns=["eager", "empty"],
        isolate=False,
    )
    shown = capsys.readouterr().err
    assert ("empty:" in shown and "/2 " in shown) if terminal else not shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aten::neg.default"], "--samples are needed"),
        (["aten::neg.default", "--samples", "nowhere"], "module:function"),
        (["aten::neg.default", "--samples", "nowhere:f"], "No module named 'nowhere'"),
        (["aten::nothing", "--samples", f"{__name__}:plain_samples"], "nothing"),
        (["aten::add", "--samples", f"{__name__}:plain_samples"], "name one of them"),
    ],
)
def test_the_command_refuses(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert message in capsys.readouterr().err


class Eights(torch.autograd.Function):
    """Has no forward mode, and refuses by an assertion what is not a row of eight."""

    @staticmethod
    def forward(ctx, x):
        assert x.shape == (8,), "a row of eight"
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_an_assertion_of_the_operator_refuses():
    """It ends neither the search for smaller arguments nor the process."""
    columns = ["forward mode", "0-dim", "empty"]
    report = doctor.check(Eights.apply, [(torch.rand(8),)], columns=columns, isolate=False)
    forward, *others = report.outcomes
    assert (forward.status, forward.arguments) == (Status.FAILS, "(float32[8])"), report
    assert [outcome.status for outcome in others] == [Status.REFUSES] * 2, report


def picked(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rows of x; a floating tensor says which."""
    if not torch.equal(places, places.round()):
        raise ValueError("places must be whole numbers")
    return x[places.long()]


def test_values_of_a_fixed_argument_are_not_changed():
    samples, columns = [(torch.rand(3, 2), torch.tensor([2.0, 0.0]))], ["gradient", "jvp"]
    moved = doctor.check(picked, samples, columns=columns, isolate=False)
    assert Status.WORKS not in {outcome.status for outcome in moved.outcomes}
    held = doctor.check(picked, samples, columns=columns, isolate=False, fixed=["places"])
    assert {outcome.status for outcome in held.outcomes} == {Status.WORKS}, str(held)
    with pytest.raises(ValueError, match="picked has no argument 'rows'; there are x, places"):
        doctor.check(picked, samples, fixed=["rows"])


def test_unknown_columns_and_no_samples_are_refused():
    neg = torch.ops.aten.neg.default
    with pytest.raises(ValueError, match="no column 'nonsense'"):
        doctor.check(neg, plain_samples, columns=["nonsense"])
    with pytest.raises(ValueError, match="at least one tuple"):
        doctor.check(neg, [])
    with pytest.raises(TypeError, match="operator or a function, got int"):
        doctor.check(3, plain_samples)


@pytest.mark.parametrize("column", ["second", "detached"])
def test_a_backward_that_says_it_has_no_derivative_refuses(column: str):
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return 3 * ctx.saved_tensors[0] ** 2 * grad

    outcome = doctor.check(Once.apply, plain_samples, columns=[column], isolate=False).outcomes[0]
    assert (outcome.status, outcome.trap) == (Status.REFUSES, ""), outcome
    assert "once_differentiable" in outcome.reason


@pytest.mark.parametrize("column", ["second", "detached"])
def test_another_error_is_a_finding(column: str):
    """It is no refusal."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, grad):
            if torch.is_grad_enabled():
                raise RuntimeError("out of luck")
            return 3 * ctx.saved_tensors[0] ** 2 * grad

    outcome = doctor.check(Fails.apply, plain_samples, columns=[column], isolate=False).outcomes[0]
    assert (outcome.status, outcome.trap) == (Status.FAILS, "raises an error"), outcome
    assert "out of luck" in outcome.reason


def test_any_number_of_samples_compiles():
    """Dynamo refuses to compile a function again and again, unless it forgets what it compiled."""
    (column,) = doctor.columns_named(["compile"])
    subject = doctor.subject_of(torch.ops.aten.exp.default)
    for rows in range(2, 12):
        outcome = examine(column, doctor.cases_of(subject, [(torch.ones(rows, 2),)]))
        assert outcome.status is Status.WORKS, outcome


def test_what_gives_its_argument_back_compiles():
    """There is nothing in the graph then, which is no break in it."""

    def same(x):
        return x

    report = doctor.check(same, plain_samples, columns=["compile"], isolate=False)
    assert report.outcomes[0].status is Status.WORKS, report
