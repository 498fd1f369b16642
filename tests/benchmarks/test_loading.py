"""The program that measures `fusewheel.load_gguf`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")


def test_each_step_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.loading import main
    from tiny_gguf import small_llama, write_gguf

    path = tmp_path / "small.gguf"
    write_gguf(path, small_llama(layers=1))
    monkeypatch.setattr(sys, "argv", ["loading", str(path)])
    main()
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split(":")[0] for line in lines]
    assert steps == [
        *("file", "torch", "reading the file", "transformers' class of the model"),
        *("load_gguf", "load_gguf", "first tokens"),
    ]
