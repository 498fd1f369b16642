"""The options of `nox -s bench`, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import cli, results
from benchmarks.examples import run

TESTS = str(Path(__file__).parents[1])


def test_the_command_in_contributing():
    options = cli.parse(["--operators", "rms_norm", "--dtypes", "float32", "--threads", "1", "2"])
    assert (options.table, options.operators, options.threads) == (
        "operators",
        ["rms_norm"],
        [1, 2],
    )


def test_each_table_has_options_of_its_own(capsys):
    options = cli.parse(["--table", "linear", "--shapes", "64x32", "--isa", "avx2"])
    assert (options.shapes, options.threads, options.isa) == ([(64, 32)], [2], "avx2")
    with pytest.raises(SystemExit):
        cli.parse(["--table", "linear", "--operators", "rms_norm"])
    assert "unrecognized arguments: --operators" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.parse(["--table", "linear", "--shapes", "64"])
    assert "--shapes" in capsys.readouterr().err


# What only some tables use. The session installs it for them alone.
OF_SOME_TABLES = ("transformers", "peft", "bitsandbytes", "onnx", "onnxruntime", "gguf")


def test_a_table_needs_no_package_of_another_one():
    program = f"""
import sys
sys.modules.update(dict.fromkeys({OF_SOME_TABLES}))
from benchmarks import cli
for table in cli.TABLES:
    cli.parse(["--table", table])
"""
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": TESTS}
    )


def test_everything_is_written(tmp_path, capsys):
    (tmp_path / "figures").mkdir()
    outputs = {
        "json": tmp_path / "run.json",
        "chart": tmp_path / "figures" / "run.png",
        "markdown": tmp_path / "page.md",
    }
    options = cli.parse([part for k, v in outputs.items() for part in (f"--{k}", str(v))])
    assert cli.finish(run(1e-3, 2e-3), options, None) == 0
    assert results.read(outputs["json"]) == run(1e-3, 2e-3)
    assert outputs["chart"].read_bytes().startswith(b"\x89PNG")
    assert "![Operators](figures/run.png)" in outputs["markdown"].read_text()
    assert "geometric mean against eager: 5.66x" in capsys.readouterr().out


def test_the_exit_status_is_that_of_the_comparison(capsys):
    options = cli.parse([])
    assert cli.finish(run(1.0), options, base=run(1.0)) == 0
    assert cli.finish(run(1.2), options, base=run(1.0)) == 1
    assert "1000.000 -> 1200.000 ms, +20%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("text", "is not JSON"), ("[]", "must have schema 1, got None")],
)
def test_a_base_that_cannot_be_read_is_refused_before_measuring(tmp_path, text, message):
    base = tmp_path / "base.json"
    if text is not None:
        base.write_text(text)
    with pytest.raises(SystemExit, match=message):
        cli._checked(cli.parse(["--against", str(base)]))


def test_a_missing_folder_is_refused_before_measuring(tmp_path):
    with pytest.raises(SystemExit, match="there is no folder"):
        cli._checked(cli.parse(["--json", str(tmp_path / "missing" / "run.json")]))
