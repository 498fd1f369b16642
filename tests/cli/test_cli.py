"""The program `fusewheel`: what it prints, and its exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import torch
from fusewheel import cli
from fusewheel.cli import bench, model
from fusewheel.cli.source import check_there
from fusewheel.doctor.outcome import Outcome, Status
from tiny_gguf import small_llama

COMMANDS = [
    *("info", "operators", "demo", "chat", "bench", "doctor", "explain", "quantize"),
    "completion",
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """What a command prints on standard output, or on standard error if it fails."""
    assert cli.main(arguments) == status
    printed = capsys.readouterr()
    return printed.out if status == 0 else printed.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == f"fusewheel {fusewheel.__version__}\n"


def test_help_names_the_commands_and_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "--help")
    places = [text.index(f"\n  {command} ") for command in COMMANDS]
    assert places == sorted(places) and "..." not in text.split("Commands:")[1]
    assert "Exit status:" in text and "130  interrupted" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, command, "--help")
    assert text.lower().startswith("usage: ") and command in text and "--help" in text


def test_info(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWHEEL_COMPILER_TEST", "7")
    text = run(capsys)
    assert text == run(capsys, "info"), "without a command it prints the same"
    found = json.loads(run(capsys, "info", "--json"))
    assert found["fusewheel"] == fusewheel.__version__ and found["torch"] == torch.__version__
    assert found["environment"]["FUSEWHEEL_COMPILER_TEST"] == "7"
    assert [b["name"] for b in found["backends"]] == [b.name for b in fusewheel.backends()]
    assert "rms_norm" in found["operators"]
    for word in (found["fusewheel"], found["processor"], "backend cpu", "rms_norm_backward"):
        assert word in text


def test_operators(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "operators").splitlines()
    assert lines[:2] == ["| operator | what it computes | kernels |", "|---|---|---|"]
    found = json.loads(run(capsys, "operators", "--json"))["operators"]
    assert len(lines) == len(found) + 2 > 20
    norm = next(operator for operator in found if operator["name"] == "rms_norm")
    assert norm["schema"].startswith("fusewheel::rms_norm(Tensor x") and "CPU" in norm["kernels"]


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--seconds", "0", "--threads", str(torch.get_num_threads()))
    found = json.loads(run(capsys, "bench", "gelu", "mul", *short, "--json"))
    assert [t["operator"] for t in found["timings"]] == ["gelu", "mul"]
    for timing in found["timings"]:
        assert timing["ratio"] == timing["eager"] / timing["fusewheel"] > 0
    assert found["machine"]["torch"] == torch.__version__
    text = run(capsys, "bench", "gelu", *short, "--dtype", "bfloat16")
    assert "gelu" in text and "bfloat16" in text and "ratio" in text
    assert "no such operator: nothing; known: " in run(capsys, "bench", "nothing", status=2)


def test_both_functions_are_timed_in_turn() -> None:
    calls: list[str] = []
    medians = bench.measure(lambda: calls.append("a"), lambda: calls.append("b"), 0.0)
    assert calls == ["a", "b"] * (bench.LEAST + 1) and min(medians) >= 0


def test_explain_a_function_of_ones_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import torch\ndef make():\n    return torch.nn.LayerNorm(64), torch.randn(512, 64)\n"
    (tmp_path / "explained.py").write_text(text + "def wrong():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "layer_norm" in run(capsys, "explain", "explained:make")
    assert json.loads(run(capsys, "explain", "explained:make", "--json"))
    assert "must give a tuple" in run(capsys, "explain", "explained:wrong", status=2)
    assert "ModuleNotFoundError" in run(capsys, "explain", "no_such_module:make", status=2)
    assert "AttributeError" in run(capsys, "explain", "explained:nothing", status=2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_quantize_and_load(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    source, target = tmp_path / "in", tmp_path / "out"
    torch.manual_seed(0)
    original = small_llama(layers=1).eval()
    original.save_pretrained(source)
    (source / "tokenizer.json").write_text("{}")
    text = run(capsys, "quantize", str(source), str(target))
    assert f"written to {target}" in text and "int4" in text.lower()
    loaded = fusewheel.transformers.load_quantized(target)
    fusewheel.quantize_(original, "int4")
    ids = torch.arange(7)[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, original(ids).logits)
    assert not any(t.is_meta for t in (*loaded.parameters(), *loaded.buffers()))
    assert (target / "tokenizer.json").read_text() == "{}"
    assert "is not empty" in run(capsys, "quantize", str(source), str(target), status=2)
    report = run(
        capsys, "quantize", str(source), str(target), "--force", "--kind", "int8", "--json"
    )
    assert json.loads(report)
    kinds = {type(m).__name__ for m in fusewheel.transformers.load_quantized(target).modules()}
    assert "LinearInt8" in kinds and "LinearInt4" not in kinds
    with pytest.raises(FileNotFoundError, match=r"must have a fusewheel\.json"):
        fusewheel.transformers.load_quantized(source)


def test_explain_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small_llama(layers=2).config.save_pretrained(tmp_path)
    text = run(capsys, "explain", str(tmp_path), "--layers", "1", "--tokens", "16")
    assert "rms_norm" in text
    assert "no such file" in run(capsys, "explain", str(tmp_path / "gone"), status=2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "_FUSEWHEEL_COMPLETE" in run(capsys, "completion", shell)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("qu", ["quantize"]),
        ("bench rms", ["rms_norm"]),
        ("demo --js", ["--json"]),
        ("demo --isa av", ["avx2"]),
        ("doctor my::op --sam", ["--samples"]),
        ("doctor --columns eager ga", ["gaps"]),
        ("doctor --conformance page --operators rms_norm silu_mul_b", ["silu_mul_backward"]),
    ],
)
def test_what_is_completed(
    words: str,
    completed: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_FUSEWHEEL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"fusewheel {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert run(capsys).split() == [f"plain,{word}" for word in completed]


@pytest.mark.parametrize("command", [("explain",), ("quantize",), ("chat",)])
@pytest.mark.parametrize(
    "path", ["./no", "no/", "a/b/c", ".no", "no.gguf", "no.safetensors", "models/no", "/no/no"]
)
def test_a_path_that_is_not_there(
    command: tuple[str, ...],
    path: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hub, which would be asked for long, is not."""
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", pytest.fail)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", pytest.fail)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", pytest.fail)
    target = ("out",) if command == ("quantize",) else ()
    error = run(capsys, *command, path, *target, status=2)
    assert f"no such file or folder: {path}" in error


@pytest.mark.parametrize("name", ["gpt2", "models", "HuggingFaceTB/SmolLM2-135M", "a/_b.c"])
def test_a_name_is_looked_for_in_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    check_there(name)


def test_files_are_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_FUSEWHEEL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "fusewheel doctor --markdown rep")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert run(capsys).split() == ["file,rep"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "No such command 'nothing'"),
        (("info", "--nothing"), "No such option"),
        (("bench", "--threads", "0"), "0 is not in the range"),
        (("quantize", "in"), "Missing argument 'OUT'"),
    ],
)
def test_a_wrong_command_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in run(capsys, *arguments, status=2)


def test_an_interruption(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "_from_module", interrupted)
    assert "interrupted" in run(capsys, "explain", "a:b", status=130)


def test_the_doctor_reads_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(fusewheel.doctor.cli, "main", lambda a: given.append(a) or 1)
    assert cli.main(["doctor", "a::b", "--samples", "m:f", "--slow"]) == 1
    assert given == [("a::b", "--samples", "m:f", "--slow")]


@pytest.mark.parametrize("name", ["nothing::gelu", "fusewheel::nothing", "fusewheel::gelu.nothing"])
def test_the_doctor_names_an_operator_that_is_not_there(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        fusewheel.doctor.cli.main([name, "--samples", "os.path:join"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("usage: fusewheel doctor")
    assert f"there is no operator {name}; --import" in error


def test_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fusewheel", "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "Usage: python -m fusewheel" in done.stderr


def test_a_report_has_colours_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    short = ("bench", "gelu", "--seconds", "0", "--threads", str(torch.get_num_threads()))
    monkeypatch.setattr(bench, "measure", lambda *_: [2.0, 1.0])
    assert "\x1b[" not in run(capsys, *short)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(capsys, *short).endswith("\x1b[32m2.00\x1b[0m\n")
    assert "\x1b[32min use\x1b[0m" in run(capsys, "info")
    assert "\x1b[" not in run(capsys, "info", "--json")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run(capsys, *short)


def test_the_doctor_has_colours_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = (
        Outcome("first", "", Status.WORKS),
        Outcome("second", "", Status.FAILS, "it works  not"),
        Outcome("third", "", Status.REFUSES, "no"),
    )
    report = fusewheel.doctor.Report("aten::sin", outcomes)
    monkeypatch.setattr(fusewheel.doctor.cli, "check", lambda *_, **__: report)
    command = ("doctor", "aten::sin", "--samples", "os.path:join")
    assert cli.main(command) == 1 and capsys.readouterr().out == f"{report}\n"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(command) == 1
    coloured = re.findall(r"\x1b\[(\d+)m(\w+)", capsys.readouterr().out)
    assert coloured == [("32", "works"), ("31", "fails"), ("33", "refuses")]
