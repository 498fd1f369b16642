"""Options, exit codes and errors of the command."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest
from demo.examples import example, example_report
from fusewheel.demo import cli, main
from fusewheel.demo.models import weights
from fusewheel.demo.settings import QUICK, Settings


@pytest.fixture
def settings_of(monkeypatch):
    """The settings that a command line leads to."""

    def settings(*argv: str) -> Settings:
        found = []

        def capture(settings, *paths):
            found.append(settings)
            return 0

        monkeypatch.setattr(cli, "check_dependencies", lambda: None)
        monkeypatch.setattr(cli, "run", capture)
        assert main(argv) == 0
        return found[0]

    return settings


def test_defaults_are_the_full_run(settings_of):
    assert settings_of() == Settings()


def test_quick_keeps_what_was_asked_for(settings_of):
    assert settings_of("--quick") == QUICK
    chosen = settings_of("--quick", "--dtypes", "bf16", "--modes", "eager,inductor")
    assert chosen.dtypes == ("bf16",)
    assert chosen.modes == ("eager", "inductor")
    assert chosen.layers == QUICK.layers


def test_the_level_of_instructions_and_llama_cpp_are_chosen(settings_of):
    chosen = settings_of("--isa", "avx2", "--no-llama-cpp", "--dtypes", "fp32,int4")
    assert (chosen.isa, chosen.llama_cpp) == ("avx2", False)
    assert chosen.floating == ("fp32",)


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    options = ("--quick", "--json", "--chart", "--modes", "--dtypes", "--threads", "--isa")
    for option in (*options, "--no-llama-cpp"):
        assert option in text


@pytest.mark.parametrize(
    "argv",
    [
        ["--dtypes", "fp8"],
        ["--modes", ","],
        ["--threads", "0"],
        ["--json", "/no/such/folder/x"],
        ["--threads", "two"],
        ["--isa", "avx1024"],
    ],
)
def test_wrong_options_are_refused(argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_a_missing_dependency_says_what_to_install(monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        weights.importlib.util,
        "find_spec",
        lambda name, *args: None if name == "gguf" else find_spec(name, *args),
    )
    assert main([]) == 2
    error = capsys.readouterr().err
    assert "gguf" in error
    assert 'pip install "fusewheel[demo]"' in error


def test_equal_modes_exit_with_zero():
    report = example_report(example("eager"), example("fusewheel", speed=2.0))
    assert cli.publish(report, None, None) == 0


def test_figures_have_colours_on_a_terminal(capsys, monkeypatch):
    other = dataclasses.replace(example("fusewheel", speed=2.0), tokens=[3, 1])
    report = example_report(example("eager"), other)
    assert cli.publish(report, None, None) == 1
    assert "\x1b[" not in capsys.readouterr().out
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(cli.sys.stdout, "isatty", lambda: True)
    assert cli.publish(report, None, None) == 1
    shown = capsys.readouterr().out
    for text in ("\x1b[32m2.00x\x1b[0m", "tokens: \x1b[31mFAILED\x1b[0m", "\x1b[32mok\x1b[0m - "):
        assert text in shown


def test_no_file_is_written_that_was_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = []
    monkeypatch.setattr(cli, "check_dependencies", lambda: None)
    monkeypatch.setattr(cli, "run", lambda settings, *paths: given.append(paths) or 0)
    assert main([]) == 0
    assert main(["--chart", "drawn.png", "--json", "figures.json"]) == 0
    assert given == [(None, None), (Path("figures.json"), Path("drawn.png"))]
    report = example_report(example("eager"), example("fusewheel", speed=2.0))
    assert cli.publish(report, *given[0]) == 0
    assert list(tmp_path.iterdir()) == []
    assert cli.publish(report, *given[1]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"drawn.png", "figures.json"}


def test_a_run_of_one_mode_has_no_chart(tmp_path, capsys):
    assert cli.publish(example_report(example("eager")), None, tmp_path / "chart.png") == 0
    assert "No chart: nothing to compare" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_other_tokens_exit_with_one(capsys):
    other = dataclasses.replace(example("fusewheel"), tokens=[3, 1, 4, 1, 6])
    assert cli.publish(example_report(example("eager"), other), None, None) == 1
    captured = capsys.readouterr()
    assert "FAILED" in captured.out
    assert "the first 4 of 5 tokens agree" in captured.err
