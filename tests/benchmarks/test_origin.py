"""The line that says when, at which commit and by which command figures were measured."""

from __future__ import annotations

import datetime
import re

import pytest
from benchmarks import operators, origin
from benchmarks.examples import run
from benchmarks.tables import markdown


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        ([], "nox -s bench"),
        (["--threads", "2", "1"], "nox -s bench -- --threads 2 1"),
        (["--table", "compile", "--limit", "10"], "nox -s bench_compile -- --limit 10"),
        (["--table", "peers", "--folder", "models"], "nox -s bench_peers"),
        (
            ["--json", "a.json", "--table", "linear", "--markdown=b.md", "--isa", "avx2"],
            "nox -s bench -- --table linear --isa avx2",
        ),
    ],
)
def test_the_command_without_its_files(arguments, typed):
    assert origin.command(arguments) == typed


def test_a_table_says_where_it_comes_from():
    machine = origin.describe(["--table", "operators"])
    assert machine["date"] == datetime.date.today().isoformat()
    found = markdown(operators.TABLE, run(1.0, **(machine | {"commit": "ad1af95"})), "")
    (line,) = re.findall("^measured .*", found, re.MULTILINE)
    assert line == (
        f"measured on {machine['date']} at commit ad1af95 by `nox -s bench -- --table operators`"
    )


def test_without_a_history_the_commit_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(origin, "_ROOT", tmp_path)
    assert set(origin.describe([])) == {"date", "command"}
    assert origin.line({"date": "2026-11-21", "command": "x"}) == "measured on 2026-11-21 by `x`"
    assert origin.line({}) == ""
