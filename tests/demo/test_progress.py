"""Progress on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from fusewheel.demo.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_elsewhere():
    stream = io.StringIO()
    with Progress(stream).step("compile") as step:
        step.tick()
        step.note = "done well"
    (line,) = stream.getvalue().splitlines()
    assert "compile: 0.0 s (done well)" in line
    assert "\r" not in stream.getvalue()


def test_a_live_line_on_a_terminal_that_never_wraps(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    with Progress(stream).step("a label that is longer than the terminal is wide"):
        pass
    *live, final = stream.getvalue().split("\r")
    assert any("a label" in line for line in live)
    assert all(len(line) < 30 for line in live)
    assert final.endswith("wide: 0.0 s\n")


def test_a_failing_step_says_so():
    stream = io.StringIO()
    with pytest.raises(ValueError, match="boom"), Progress(stream).step("compile"):
        raise ValueError("boom")
    assert "compile: failed after 0.0 s" in stream.getvalue()
