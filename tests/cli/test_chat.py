"""`fusewheel chat`: questions from a pipe, commands, and what the model reads of a conversation."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fusewheel
import pytest
import torch
import transformers
from fusewheel import cli
from fusewheel.cli.conversation import Answer, Conversation
from tiny_gguf import small_llama, write_gguf
from transformers.generation import TextStreamer

TOKENS = ("<e>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "<", ">", "/", ":", "ab", "cd")
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and m.content == 'no' %}{{ raise_exception('no system') }}{% endif %}"
    "<{{ m.role }}> {{ m.content }}/{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "model.gguf"
    model = small_llama(layers=1, vocab_size=len(TOKENS), max_position_embeddings=256)
    write_gguf(path, model, tokens=TOKENS)
    return path


@pytest.fixture
def loaded(gguf: Path) -> tuple[Any, Any]:
    model, tokenizer = fusewheel.load_gguf(gguf)
    tokenizer.chat_template = TEMPLATE
    return model, tokenizer


def chat(monkeypatch: pytest.MonkeyPatch, lines: str, *arguments: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return cli.main(["chat", *arguments])


def asked(conversation: Conversation, question: str) -> Any:
    return conversation.ask(question, lambda _: None)


@pytest.mark.parametrize(
    "way", [pytest.param("--compile", marks=pytest.mark.nightly), "--no-compile"]
)
def test_a_pipe(
    way: str, gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers are on standard output, one for each question, and everything else is not."""
    options = (str(gguf), way, "--max-tokens", "8", "--temperature", "0")
    lines = "ab\n\n/stats\ncd\n/reset\nab\n/what\n/help\n/quit\nnever\n"
    assert chat(monkeypatch, lines, *options) == 0
    printed = capsys.readouterr()
    answers = printed.out.splitlines()
    assert len(answers) == 3 and answers[0] == answers[2] != ""
    assert printed.err.count("tokens/s") == 2 and "8 tokens; " in printed.err
    assert "forgotten" in printed.err and "no such command: /what" in printed.err
    assert "/reset   forget what was said" in printed.err


def test_it_compiles(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen: list[Any] = []
    monkeypatch.setattr(fusewheel.compiler, "freeze", frozen.append)
    assert chat(monkeypatch, "ab\n", str(gguf), "--max-tokens", "1") == 0
    assert [type(model).__name__ for model in frozen] == ["LlamaForCausalLM"]
    assert chat(monkeypatch, "", str(gguf), "--no-compile") == 0
    assert len(frozen) == 1


def test_an_answer_is_that_of_generate(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    conversation = Conversation(model, tokenizer, max_tokens=6, temperature=0, system="s")
    messages = [{"role": "system", "content": "s"}]
    for question in ("ab", "cd", "ef"):
        pieces: list[str] = []
        answer = conversation.ask(question, pieces.append)
        messages.append({"role": "user", "content": question})
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        expected = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
        text = tokenizer.decode(expected[0, ids.shape[1] :], skip_special_tokens=True)
        assert answer.text == "".join(pieces) == text
        messages.append({"role": "assistant", "content": answer.text})


def test_nothing_is_read_twice(loaded: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = loaded
    conversation = Conversation(model, tokenizer, max_tokens=4, temperature=0)
    read: list[int] = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    asked(conversation, "abc")
    first, read[:] = read[0], []
    asked(conversation, "abc")
    # The last token of the first answer, the end of its line, the question, and what is around it.
    assert read[0] <= first + 2 and read[1:] == [1, 1, 1]
    conversation.reset()
    read.clear()
    asked(conversation, "abc")
    assert read[0] == first


def test_the_oldest_questions_are_forgotten(loaded: tuple[Any, Any]) -> None:
    conversation = Conversation(*loaded, max_tokens=8, temperature=0)
    forgotten = [asked(conversation, "a" * 60).forgotten for _ in range(5)]
    assert forgotten[:2] == [0, 0] and sum(forgotten) == 3
    with pytest.raises(ValueError, match=r"the question has \d+ tokens .* reads 256 at most"):
        asked(conversation, "a" * 300)
    assert asked(conversation, "a").tokens == 8


def test_an_interruption_keeps_what_was_said(
    loaded: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Conversation(*loaded, max_tokens=8, temperature=0)
    whole = asked(conversation, "ab").text
    conversation.reset()
    put = TextStreamer.put

    def interrupted(streamer: Any, value: Any) -> None:
        put(streamer, value)
        if streamer.tokens == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(TextStreamer, "put", interrupted)
    answer = asked(conversation, "ab")
    assert answer.interrupted and answer.tokens == 3 and whole.startswith(answer.text)
    monkeypatch.undo()
    assert not asked(conversation, "cd").interrupted


def test_an_answer_that_never_began_has_no_times() -> None:
    answer = Answer("", 0, first_seconds=0.0, seconds=0.0, interrupted=True, forgotten=0)
    assert str(answer) == "no tokens"


def test_drawing_with_a_seed(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for seed in ("1", "1", "2"):
        options = ("--no-compile", "--max-tokens", "12", "--temperature", "5", "--seed", seed)
        assert chat(monkeypatch, "ab\n", str(gguf), *options) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != answers[2]


def test_an_int8_cache(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths: list[int] = []
    own = fusewheel.transformers.int8_cache
    monkeypatch.setattr(fusewheel.transformers, "int8_cache", lambda c: lengths.append(1) or own(c))
    options = ("--int8-cache", "--max-tokens", "6", "--temperature", "0")
    assert chat(monkeypatch, "ab\ncd\n", str(gguf), *options) == 0
    assert lengths and len(capsys.readouterr().out.split()) == 2


def test_a_folder(
    loaded: tuple[Any, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of transformers, quantised on the way or before: the same answers."""
    source, target = tmp_path / "in", tmp_path / "out"
    torch.manual_seed(0)
    small_llama(layers=1, vocab_size=len(TOKENS)).save_pretrained(source)
    loaded[1].save_pretrained(source)
    assert cli.main(["quantize", str(source), str(target)]) == 0
    capsys.readouterr()
    answers = []
    for arguments in ([str(source), "--quantize", "int4"], [str(target)]):
        options = ("--no-compile", "--max-tokens", "6", "--temperature", "0")
        assert chat(monkeypatch, "ab\n", *arguments, *options) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./no-such-folder"], "no-such-folder"),
        (["no-such-file.gguf"], "no-such-file.gguf"),
        (["GGUF", "--quantize", "int4"], "not for a GGUF file"),
        (["GGUF", "--temperature", "-1"], "not in the range"),
        (["GGUF", "--max-tokens", "0"], "not in the range"),
    ],
)
def test_what_is_wrong(
    arguments: list[str],
    message: str,
    gguf: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(gguf) if argument == "GGUF" else argument for argument in arguments]
    assert chat(monkeypatch, "ab\n", *given) == 2
    assert message in capsys.readouterr().err


def test_packages_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert cli.main(["chat", "model.gguf"]) == 2
    assert "pip install transformers gguf" in capsys.readouterr().err
    assert cli.main(["chat", "folder"]) == 2
    assert "pip install transformers\n" in capsys.readouterr().err


def test_a_template_that_refuses(loaded: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="does not take these messages: no system"):
        Conversation(*loaded, system="no")


def test_without_a_template_lines_go_on(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    tokenizer.chat_template = None
    answer = asked(Conversation(model, tokenizer, max_tokens=6, temperature=0), "ab")
    ids = tokenizer("ab\n", return_tensors="pt")["input_ids"]
    expected = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert answer.text == tokenizer.decode(expected[0, ids.shape[1] :], skip_special_tokens=True)


def test_a_window_that_slides_starts_anew(loaded: tuple[Any, Any]) -> None:
    """What such a cache has dropped cannot be read again."""
    config = transformers.MistralConfig(
        **{"vocab_size": len(TOKENS), "hidden_size": 32, "intermediate_size": 32},
        **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1},
        **{"head_dim": 16, "sliding_window": 8, "max_position_embeddings": 512},
    )
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(config).eval()
    conversation = Conversation(model, loaded[1], max_tokens=6, temperature=0)
    again = Conversation(model, loaded[1], max_tokens=6, temperature=0)
    for question in ("abcdef", "ghijkl"):
        asked(conversation, question)
        again._forget_cache()
        asked(again, question)
    assert [m["content"] for m in conversation._said] == [m["content"] for m in again._said]
