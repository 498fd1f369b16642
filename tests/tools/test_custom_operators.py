"""The page about operators of other packages, without these packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT, load_script

page_of = load_script("tools/custom_operators/page.py")
packages = [package.name for package in load_script("tools/custom_operators/tried.py").PACKAGES]
PAGE = ROOT / "docs" / "custom-operators.md"
FINDINGS = page_of.findings()


@pytest.mark.parametrize("finding", FINDINGS, ids=[finding.path.stem for finding in FINDINGS])
def test_a_finding_is_short_and_on_the_page(finding: Any) -> None:
    lines = [line for line in finding.program.splitlines() if line]
    assert len(lines) <= 10
    assert finding.package in packages and finding.title and finding.text
    # `nox -s doctor_packages -- --check` looks at what it prints too.
    assert page_of.shown(finding, "").rpartition("```text")[0] in PAGE.read_text(encoding="utf-8")


def test_the_page_has_no_other_findings() -> None:
    assert PAGE.read_text(encoding="utf-8").count("\n### ") == len(FINDINGS)


def test_every_package_has_samples() -> None:
    folder = ROOT / "tools" / "custom_operators" / "samples"
    assert {path.stem for path in folder.glob("*.py")} == {n.replace("-", "_") for n in packages}


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("print(1)\nprint(2)", "1\n2"),
        ("import os\nprint(1, flush=True)\nos.abort()", "1\n(the process ends with SIGABRT)"),
        ("print(1)\n1 / 0", "1\nZeroDivisionError: division by zero"),
    ],
)
def test_what_a_program_prints(program: str, output: str, tmp_path: Path) -> None:
    path = tmp_path / "some_package__name.py"
    path.write_text(f'"""A title\n\nA text.\n"""\n\n{program}\n')
    (finding,) = page_of.findings(tmp_path)
    assert (finding.package, finding.title, finding.text) == ("some-package", "A title", "A text.")
    assert page_of.printed(finding) == output
    assert page_of.shown(finding, output) == (
        f"### A title\n\nA text.\n\n```python\n{program}\n```\n\n```text\n{output}\n```"
    )


def test_what_was_found_is_counted() -> None:
    outcomes = [
        {"status": "works", "column": "eager", "trap": ""},
        {"status": "fails", "column": "grad", "trap": "no rule"},
        {"status": "fails", "column": "vjp", "trap": "no rule"},
        {"status": "fails", "column": "empty", "trap": "the process dies"},
        {"status": "refuses", "column": "0-dim", "trap": ""},
    ]
    found = {"version": "1.0", "reports": [{"subject": "a::f", "outcomes": outcomes}]}
    text = page_of.section("a", found)
    assert text.startswith("## a 1.0\n")
    assert "| `a::f` | 1 | 1 | 3 | no rule: grad, vjp; the process dies: empty |" in text
    absent = {"version": "2.0", "error": "/x/site-packages/b/c.so: undefined | symbol\n"}
    assert page_of.section("b", absent) == ""
    both = page_of.overview({"a": found, "b": absent}, {"a": 2}, "torch 9")
    assert "Run with torch 9." in both
    assert "| [a 1.0](#a-10) | 1 | 1 | 1 | 3 | 2 |" in both
    assert "| b 2.0 | `b/c.so: undefined \\| symbol` |" in both
