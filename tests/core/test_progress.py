"""Progress is shown on a terminal, and nowhere else."""

from __future__ import annotations

import io
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import fusewheel
import pytest
import torch
from copies import run_beside_torch
from core.screen import Terminal
from fusewheel import cli
from fusewheel._core.progress import LiveLine, progress, working
from tqdm import tqdm


@pytest.fixture
def terminal(monkeypatch):
    # In place of the whole module: pytest sets sys.stderr anew between a fixture and its test.
    stream = Terminal()
    streams = types.SimpleNamespace(stderr=stream, __stderr__=stream)
    monkeypatch.setattr("fusewheel._core.progress.sys", streams)
    return stream


def test_items_pass_through_without_a_terminal(capsys):
    assert list(progress(iter("abc"), total=3, describe="letters")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_a_program_may_have_no_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert list(progress([1, 2])) == [1, 2]


def test_a_terminal_shows_the_number_and_what_is_done(terminal):
    assert list(progress(iter("abc"), total=3, describe="letters")) == ["a", "b", "c"]
    assert "letters" in terminal.getvalue()
    assert "0/3" in terminal.getvalue()


def test_the_length_is_the_total(terminal):
    assert list(progress("abc")) == ["a", "b", "c"]
    assert "0/3" in terminal.getvalue()


def test_each_item_may_be_described(terminal):
    list(progress([1, 2], describe="item {}".format))
    assert "item 1" in terminal.getvalue()
    assert "item 2" in terminal.getvalue()


def test_no_thread_is_started(terminal):
    """The doctor forks while it shows progress."""
    before = threading.enumerate()
    bar = progress([1, 2])
    next(bar)
    assert threading.enumerate() == before
    list(bar)


def test_without_tqdm_a_sentence_says_what_to_install(terminal, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.warns(UserWarning, match="pip install tqdm"):
        assert list(progress([1, 2])) == [1, 2]


def test_a_live_line_is_replaced_and_printed_lines_stay():
    stream = Terminal()
    line = LiveLine(stream)
    line.show("half")
    line.print("first step: done")
    shown = stream.getvalue().split("\r")
    assert "half" in shown
    assert shown[-1] == "first step: done\n"


def test_a_live_line_is_not_written_elsewhere():
    stream = io.StringIO()
    line = LiveLine(stream)
    line.show("half")
    line.print("first step: done")
    assert stream.getvalue() == "first step: done\n"


def test_fusewheel_alone_imports_neither_tqdm_nor_psutil(tmp_path):
    unwanted = "{'tqdm', 'psutil'} & set(sys.modules)"
    # torch may import them itself.
    code = f"import sys, torch; before = {unwanted}; import fusewheel; print({unwanted} - before)"
    done = run_beside_torch(code, tmp_path)
    assert done.stdout == "set()\n", done.stderr


def test_a_line_stands_while_a_graph_is_compiled(terminal):
    torch.compile(lambda x: x.sin(), backend="fusewheel", options={"inner": "none"})(torch.ones(2))
    shown = terminal.getvalue()
    assert "fusewheel: compiling a graph of 3 nodes" in shown
    assert terminal.lines == [], "it is removed"


def _compile(backend, function):
    torch.compile(function, backend=backend, fullgraph=True)(torch.ones(2))


@pytest.fixture
def watched():
    """`torch.compiler.reset` makes PyTorch forget who watches; our next graph tells it again."""
    _compile("fusewheel", lambda x: x.cos())


def test_the_line_stands_while_pytorch_traces(watched, terminal, monkeypatch):
    seen = []
    compiler = "fusewheel.compiler.entry.dynamo.compile_graph"
    monkeypatch.setattr(compiler, lambda gm, *_: seen.append(terminal.lines) or gm.forward)
    _compile("fusewheel", lambda x: x.sin())
    first, _, rest = terminal.getvalue().partition("compiling a graph")
    assert "PyTorch captures a graph" in first
    assert seen == [["", "fusewheel: compiling a graph of 3 nodes"]], "one line at a time"
    assert "PyTorch captures a graph" in rest, "guards are made at the end"
    assert terminal.lines == [], "it is removed"


def test_no_line_for_another_backend(watched, terminal):
    _compile("eager", lambda x: x.sin())
    assert terminal.getvalue() == ""


def test_the_line_goes_away_if_pytorch_cannot_trace(watched, terminal):
    with pytest.raises(torch._dynamo.exc.Unsupported):
        _compile("fusewheel", lambda x: x.sin() if torch._dynamo.graph_break() else x)
    assert "PyTorch captures a graph" in terminal.getvalue() and terminal.lines == []


def test_work_may_end_in_another_thread(terminal):
    """Of compilations that overlap PyTorch tells the first beginning and the last end."""
    work = working("at work")
    work.__enter__()
    with ThreadPoolExecutor(1) as others:
        others.submit(work.__exit__, None, None, None).result()
    assert terminal.lines == []
    with working("the next"):
        assert terminal.lines == ["", "the next"]
    assert terminal.lines == []


def test_a_part_of_the_work_has_the_same_line(terminal):
    with working("all"):
        assert terminal.lines == ["", "all"]
        with working("a part"):
            assert terminal.lines == ["", "a part"]
        assert terminal.lines == ["", "all"]
    assert terminal.lines == []


def test_what_others_show_stays(terminal):
    """Texts without an end of line, and bars, also of other threads."""
    terminal.write("loss: ")
    with working("at work"):
        assert terminal.lines == ["loss:", "at work"]
        terminal.write("1.5")
    terminal.write("\r\n")
    with tqdm(total=3, file=terminal, bar_format="{n} of {total}") as bar:
        with working("at work"), ThreadPoolExecutor(1) as others:
            bar.update()
            bar.refresh()
            assert terminal.lines == ["loss: 1.5", "1 of 3", "at work"]
            others.submit(_work_of_another, terminal, bar).result()
            assert terminal.lines == ["loss: 1.5", "2 of 3", "at work"]
        bar.update()
    assert terminal.lines == ["loss: 1.5", "3 of 3"]


def _work_of_another(terminal, bar):
    with working("another"):
        bar.update()
        bar.refresh()
        assert terminal.lines == ["loss: 1.5", "2 of 3", "at work", "another"]


def test_a_warning_on_the_way_stays_too(terminal):
    with working("all"):
        terminal.write("a warning\n")
        with working("a part"):
            assert terminal.lines == ["a warning", "", "a part"]
    terminal.write("b")
    assert terminal.lines == ["a warning", "b"]


@pytest.mark.parametrize("name", ["stderr", "__stderr__"])
def test_nothing_is_drawn_through_a_stream_of_others(name, monkeypatch):
    """rich, while it shows bars, has one there that prints whole lines."""
    streams = {"stderr": None, "__stderr__": None, name: Terminal()}
    monkeypatch.setattr("fusewheel._core.progress.sys", types.SimpleNamespace(**streams))
    with working("at work"):
        pass
    assert streams[name].getvalue() == ""


def test_a_terminal_without_control_codes_shows_nothing(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with working("at work"):
        pass
    assert terminal.getvalue() == ""


def test_a_line_stands_while_a_model_is_exported(terminal):
    fusewheel.export(torch.nn.GELU(), (torch.ones(2),))
    shown = terminal.getvalue()
    assert "PyTorch captures it" in shown and "exporting a graph of 3 nodes" in shown
    assert terminal.lines == [], "it is removed"


def test_a_line_stands_while_a_model_is_explained(terminal):
    fusewheel.explain(torch.nn.GELU(), torch.ones(2))
    assert "fusewheel: explaining a model" in terminal.getvalue()
    assert terminal.lines == [], "it is removed"


def test_a_line_stands_while_a_command_loads_a_model(terminal, tmp_path, monkeypatch, capsys):
    (tmp_path / "made.py").write_text(
        "import torch\nmake = lambda: (torch.nn.GELU(), torch.ones(2))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert cli.main(["explain", "made:make"]) == 0
    assert "loading made:make" in terminal.getvalue() and terminal.lines == []
    assert "gelu" in capsys.readouterr().out


def test_a_line_stands_while_a_frozen_model_is_compiled(terminal):
    fusewheel.freeze(torch.nn.GELU(), options={"inner": "none"})(torch.ones(2))
    assert "fusewheel: compiling a frozen model" in terminal.getvalue()


def test_the_line_goes_away_if_what_it_is_about_fails(terminal):
    with pytest.raises(ValueError), working("at work"):
        raise ValueError
    assert "at work" in terminal.getvalue() and terminal.lines == []
