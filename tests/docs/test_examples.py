"""The programs in docs/examples/, with a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fusewheel
import pytest
import torch
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


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_packed_rows(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Padded or packed, the loss is the same."""
    pytest.importorskip("peft")
    program = load_script("docs/examples/packed.py")
    texts = "\n\n".join("abc " * length for length in range(1, 9))
    monkeypatch.setattr("pydoc_data.topics.topics", {"one": texts, "two": texts})
    options = ["--steps", "2", "--texts", "4", "--longest", "24"]
    padded, packed = program.main(["--model", str(gguf), *options])
    assert packed == pytest.approx(padded, rel=1e-5)
    printed = capsys.readouterr().out
    assert "padded: 4 x " in printed and "packed: 1 x " in printed
    assert "step 2 of 2: loss" in printed


def test_texts_are_padded_and_packed() -> None:
    program = load_script("docs/examples/packed.py")
    texts = [torch.tensor([5, 6, 7]), torch.tensor([8, 9])]
    padded, packed = program.padded(texts), program.packed(texts)
    assert padded["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert padded["labels"].tolist() == [[5, 6, 7], [8, 9, -100]]
    assert packed["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert packed["labels"].tolist() == [[-100, 6, 7, -100, 9]]


def test_a_model_for_cpp(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is handed to AOTInductor gives the model's logits; another program answers here."""
    program = load_script("docs/examples/to_cpp.py")
    exported: list[Any] = []

    def compile_and_package(exported_program: Any, package_path: str) -> None:
        exported.append(exported_program)
        Path(package_path).write_bytes(b"0")

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", compile_and_package)
    path = tmp_path / "model.pt2"
    program.main([str(path), "--model", str(gguf), "--longest", "64"])
    assert "rms_norm" in capsys.readouterr().out
    model, _ = fusewheel.load_gguf(gguf)
    for length in (2, 21):
        tokens = torch.arange(length)[None] % len(TOKENS)
        with torch.no_grad():
            wanted = model(tokens).logits[:, -1:]
            torch.testing.assert_close(exported[0].module()(tokens), wanted)

    answers = tmp_path / "answer"
    answers.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/with\nwhile read l; do echo "1 2 "; done\n'
    )
    answers.chmod(0o755)
    model, tokenizer = fusewheel.load_gguf(gguf)
    tokenizer.chat_template = TEMPLATE
    monkeypatch.setattr("fusewheel.load_gguf", lambda _: (model, tokenizer), raising=False)
    command = [str(path), "--model", str(gguf), "--program", str(answers), "--count", "5"]
    program.main([*command, "ab", "cab"])
    end = tokenizer.eos_token_id
    assert (tmp_path / "with").read_text() == f"{path} 5 {end}\n"
    assert capsys.readouterr().out == "> ab\nab\n> cab\nab\n"


def test_a_chat(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load_script("docs/examples/chat.py")

    def load(path: Path) -> Any:
        model, tokenizer = fusewheel.quantization.load_gguf(path)
        tokenizer.chat_template = TEMPLATE
        return model, tokenizer

    monkeypatch.setattr(fusewheel, "load_gguf", load, raising=False)
    answers = program.talk(["ab", "cab"], gguf, compiled=False)
    assert len(answers) == 2 and all(answers)
    printed = capsys.readouterr().out
    assert printed == "".join(f"> {q}\n{a}\n" for q, a in zip(("ab", "cab"), answers, strict=True))
    given: list[Any] = []
    monkeypatch.setattr(program, "talk", lambda *arguments: given.append(arguments))
    program.main(["ab", "--model", str(gguf), "cab"])
    program.main([])
    assert given == [(["ab", "cab"], gguf), (["What is the capital of France?"], None)]
