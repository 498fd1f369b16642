"""The programs in docs/examples/, with a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fusewheel
import pytest
from scripts import load_script
from tiny_gguf import small_llama, write_gguf

TOKENS = ("<e>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "ab")
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("examples") / "model.gguf"
    model = small_llama(layers=1, vocab_size=len(TOKENS), max_position_embeddings=512)
    write_gguf(path, model, tokens=TOKENS)
    return path


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_fine_tuning(
    gguf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The text is learnt, which repeats itself; adapters and curve are written."""
    pytest.importorskip("peft")
    program = load_script("docs/examples/fine_tune.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pydoc_data.topics.topics", {str(i): "abc " * 90 for i in range(10)})
    program.main(["--model", str(gguf), "--steps", "30", "--length", "64", "--rate", "0.05"])
    printed = capsys.readouterr().out
    assert "1 x attention and cross_entropy" in printed and "step 30 of 30: loss" in printed
    words = printed.splitlines()[-1].split()
    before, after = float(words[3]), float(words[5])
    assert after < before - 0.3
    assert (tmp_path / "adapters" / "adapter_config.json").exists()
    assert (tmp_path / "fine_tune.png").stat().st_size > 10_000


def test_rows_are_packed() -> None:
    program = load_script("docs/examples/fine_tune.py")
    first, second = program.packed([[1, 2, 3], [4, 5], [6, 7, 8, 9]], 4)
    assert first["input_ids"].tolist() == [[1, 2, 3, 4]]
    assert first["position_ids"].tolist() == [[0, 1, 2, 0]]
    assert first["labels"].tolist() == [[-100, 2, 3, -100]]
    assert second["input_ids"].tolist() == [[5, 6, 7, 8]]
    assert second["position_ids"].tolist() == [[0, 0, 1, 2]]


def test_a_chat(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load_script("docs/examples/chat.py")

    def load(path: Path) -> Any:
        model, tokenizer = fusewheel.quantization.load_gguf(path)
        tokenizer.chat_template = TEMPLATE
        return model, tokenizer

    monkeypatch.setattr(fusewheel, "load_gguf", load, raising=False)
    answers = program.main(["ab", "cab"], gguf, compiled=False)
    assert len(answers) == 2 and all(answers)
    printed = capsys.readouterr().out
    assert printed == "".join(f"> {q}\n{a}\n" for q, a in zip(("ab", "cab"), answers, strict=True))
