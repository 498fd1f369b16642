"""`fusewheel chat`: a language model that answers in the terminal."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fusewheel._core.progress import LiveLine
from fusewheel.cli.model import as_usage_errors
from fusewheel.cli.source import check_there

if TYPE_CHECKING:
    from fusewheel.cli.conversation import Conversation

COMMANDS = """/reset   forget what was said
/stats   show or hide tokens per second
/help    show this
/quit    end (or Ctrl-D)
Ctrl-C ends an answer that is too long."""


@click.command(short_help="Talk with a language model in the terminal.")
@click.argument("model", metavar="MODEL")
@click.option(
    "--system", metavar="TEXT", help="The system prompt: instructions before the conversation."
)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.7,
    show_default=True,
    help="How random the words are; 0 always takes the likeliest word.",
)
@click.option("--seed", type=int, help="Make the random choices the same in each run.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="The most tokens of an answer.",
)
@click.option("--quantize", type=click.Choice(["int4", "int8"]), help="Make the weights smaller.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="The dtype of the activations.",
)
@click.option("--threads", type=click.IntRange(1), help="PyTorch's threads (default: its own).")
@click.option(
    "--compile/--no-compile",
    "compiled",
    default=True,
    show_default=True,
    help="Compiled answers come faster, but the first two take some seconds longer.",
)
@click.option(
    "--int8-cache",
    is_flag=True,
    help="Keep keys and values in int8, a quarter of the memory; uncompiled.",
)
@click.option("--stats/--no-stats", default=False, help="Show tokens per second after an answer.")
def chat(
    model: str,
    system: str | None,
    temperature: float,
    seed: int | None,
    max_tokens: int,
    quantize: Literal["int4", "int8"] | None,
    dtype: str | None,
    threads: int | None,
    compiled: bool,
    int8_cache: bool,
    stats: bool,
) -> None:
    """Talk with a language model in the terminal.

    MODEL is a GGUF file, a folder that `fusewheel quantize` or transformers has written, or the
    name of a model of transformers. In the terminal, /help lists what else can be typed. Without a
    terminal each line of standard input is a question, and only the answers are printed.
    """
    import torch

    from fusewheel.cli.conversation import Conversation

    if threads is not None:
        torch.set_num_threads(threads)
    if seed is not None:
        torch.manual_seed(seed)
    line = LiveLine(sys.stderr)
    line.show(f"loading {model}")
    _check_packages(model)
    with as_usage_errors():
        loaded, tokenizer = _load(model, dtype, quantize)
        if tokenizer is None:
            raise ValueError(f"{model} has no tokenizer")
        options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
        if int8_cache:
            from fusewheel import transformers as own

            own.register()
            loaded.set_attn_implementation(own.NAME)
            options["new_cache"] = own.int8_cache
        conversation = Conversation(loaded, tokenizer, system=system, **options)
    if compiled and not int8_cache:
        import fusewheel

        fusewheel.freeze(loaded)
    line.close()
    _talk(conversation, stats)


def _check_packages(model: str) -> None:
    needed = ["transformers", *(["gguf"] if model.lower().endswith(".gguf") else [])]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        names = " ".join(missing)
        raise click.UsageError(f"chat needs packages that are missing: pip install {names}")


def _load(
    name: str, dtype: str | None, quantize: Literal["int4", "int8"] | None
) -> tuple[Any, Any]:
    """The model in eval mode, and its tokenizer or None."""
    import torch

    import fusewheel
    from fusewheel.transformers import load_quantized, register_quantizers
    from fusewheel.transformers._quantized import SETTINGS

    check_there(name)
    path = Path(name)
    if path.suffix.lower() == ".gguf":
        if quantize is not None:
            raise ValueError("--quantize is not for a GGUF file, whose weights stay as they are")
        return fusewheel.load_gguf(path, getattr(torch, dtype or "float32"))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    if (path / SETTINGS).exists():
        if quantize is not None or dtype is not None:
            raise ValueError(f"{name} is quantised already; leave out --quantize and --dtype")
        return load_quantized(path), tokenizer
    register_quantizers()
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype or "auto").eval()
    if quantize is not None:
        fusewheel.quantize_(model, quantize)
    return model, tokenizer


def _talk(conversation: Conversation, stats: bool) -> None:
    terminal = sys.stdin.isatty()
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (lines can be edited, and called back)
        click.secho("/help lists what can be typed", err=True, dim=True)
    for question in _questions(terminal):
        match question.strip():
            case "":
                continue
            case "/quit" | "/exit" | "/bye":
                return
            case "/help" | "/?":
                click.echo(COMMANDS, err=True)
            case "/reset":
                conversation.reset()
                click.secho("forgotten", err=True, dim=True)
            case "/stats":
                stats = not stats
            case text if text.startswith("/") and " " not in text:
                click.echo(f"no such command: {text}\n{COMMANDS}", err=True)
            case text:
                _answer(conversation, text, stats)


def _questions(terminal: bool) -> Iterator[str]:
    while True:
        try:
            yield input("> ") if terminal else input()
        except EOFError:
            return


def _answer(conversation: Conversation, question: str, stats: bool) -> None:
    waiting = LiveLine(sys.stderr)
    waiting.show("...")

    def write(text: str) -> None:
        waiting.close()
        click.echo(text, nl=False)

    try:
        answer = conversation.ask(question, write)
    except ValueError as error:
        waiting.close()
        click.echo(str(error), err=True)
        return
    waiting.close()
    click.echo()
    if answer.forgotten:
        text = f"no room for all that was said: forgot the oldest {answer.forgotten} questions"
        click.secho(text, err=True, dim=True)
    if stats:
        click.secho(str(answer), err=True, dim=True)
