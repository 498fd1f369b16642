"""`fusewheel explain` and `fusewheel quantize`, which read a model."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import click

from fusewheel._core.progress import working
from fusewheel._core.show import show
from fusewheel.cli.source import check_there

COLOURS = {r"^replaced(?= )": "green", r"^(kept|left|break)(?= )": "yellow"}
"""Of the first column of what `explain` prints."""


@click.command(short_help="Show what the compiler replaces in a model, and why not the rest.")
@click.argument("model", metavar="MODEL")
@click.option("--layers", type=click.IntRange(1), help="Keep only this number of layers.")
@click.option(
    "--tokens", type=click.IntRange(1), default=64, show_default=True, help="Length of the prompt."
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32")
@click.option(
    "--train", is_flag=True, help="Show the graph of a training step instead of inference."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    model: str, layers: int | None, tokens: int, dtype: str, train: bool, as_json: bool
) -> None:
    """Show what the compiler replaces in a model, and why not the rest.

    MODEL is MODULE:FUNCTION, where FUNCTION() gives one tuple: the model, then each of its
    arguments, as in (model, x, y). Or MODEL is a folder with the config.json of a language model of
    transformers, or the name of one. Such a model gets random weights, which do not change what is
    replaced.
    """
    with as_usage_errors(), working(f"loading {model}"):
        import torch

        import fusewheel

        if ":" in model:
            module, *inputs = _from_module(model)
            named: dict[str, Any] = {}
        else:
            module, named = _from_config(model, layers, tokens, getattr(torch, dtype), train)
            inputs = []
    with torch.set_grad_enabled(train):
        report = fusewheel.explain(module, *inputs, **named)
    show(report, as_json, COLOURS)


@click.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT", type=click.Path(file_okay=False, path_type=Path))
@click.option("--kind", type=click.Choice(["int4", "int8"]), default="int4", show_default=True)
@click.option(
    "--group-size",
    type=click.Choice(["32", "64", "128"]),
    default="32",
    show_default=True,
    help="In features that share a scale.",
)
@click.option("--dynamic", is_flag=True, help="Round activations to int8 too.")
@click.option("--force", is_flag=True, help="Write into OUT even if it is not empty.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def quantize(
    source: str,
    target: Path,
    kind: Literal["int4", "int8"],
    group_size: str,
    dynamic: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a language model with 4-bit or 8-bit weights.

    IN is a folder with a model of transformers, or the name of one. OUT becomes a folder for
    `fusewheel.transformers.load_quantized`.
    """
    if target.exists() and not force and any(target.iterdir()):
        raise click.BadParameter(f"{target} is not empty; --force writes into it", param_hint="OUT")
    with as_usage_errors(), working(f"loading {source}"):
        from transformers import AutoModelForCausalLM

        from fusewheel.transformers import copy_tokenizer, save_quantized

        check_there(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype="auto").eval()
    options: dict[str, Any] = {"group_size": int(group_size), "dynamic": dynamic}
    report = save_quantized(model, target, kind, **options)
    copy_tokenizer(source, target)
    click.echo(report.to_json() if as_json else f"{report}\nwritten to {target}")


@contextlib.contextmanager
def as_usage_errors() -> Iterator[None]:
    """What is missing ends the program with its reason and status 2, without a traceback."""
    try:
        yield
    except (AttributeError, ImportError, OSError, TypeError, ValueError) as error:
        raise click.UsageError(f"{type(error).__name__}: {error}") from error


def _from_module(name: str) -> tuple[Any, ...]:
    """What `MODULE:FUNCTION` gives: a model, then its positional arguments."""
    # Modules in the current folder can be imported, as with `python -m`.
    sys.path.insert(0, os.getcwd())
    module, _, function = name.partition(":")
    found = getattr(importlib.import_module(module), function)()
    if not isinstance(found, tuple) or not found or not callable(found[0]):
        raise TypeError(
            f"{name}() must give a tuple of a model and its arguments, got {found!r:.80}"
        )
    return found


def _from_config(
    name: str, layers: int | None, tokens: int, dtype: Any, train: bool
) -> tuple[Any, dict[str, Any]]:
    """A language model with random weights, and the arguments of its call."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    check_there(name)
    config = AutoConfig.from_pretrained(name)
    if layers is not None:
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).train(train)
    ids = torch.arange(tokens)[None] % config.vocab_size
    given: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    return model, given | ({"labels": ids} if train else {})
