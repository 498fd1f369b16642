"""`fusewheel demo` and `fusewheel doctor`, which read their own options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fusewheel.cli.complete import column_names, items, operator_names

_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
# What completes a word after these options, whose parser lists no choices.
_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "--columns": column_names,
    "--operators": operator_names,
}


def _demo_parser() -> argparse.ArgumentParser:
    from fusewheel.demo import cli

    return cli.parser()


def _doctor_parser() -> argparse.ArgumentParser:
    from fusewheel.doctor import cli

    return cli.parser()


_PARSERS = {"demo": _demo_parser, "doctor": _doctor_parser}


class _HandedOn(click.Command):
    """A command whose options a parser of its own knows."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        assert self.name is not None
        return [
            CompletionItem(option, help=action.help)
            for action in _PARSERS[self.name]()._actions
            for option in action.option_strings
            if option.startswith(incomplete)
        ]


def _values(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What may follow the last option."""
    option = next((w for w in reversed(ctx.params["arguments"]) if w.startswith("-")), None)
    assert ctx.command.name is not None
    actions = _PARSERS[ctx.command.name]()._actions
    action = next((a for a in actions if option in a.option_strings), None)
    if action is None:
        return []
    if _is_file(action):
        return [CompletionItem(incomplete, type="file")]
    words = _NAMES[option]() if option in _NAMES else action.choices or ()
    return items(words, incomplete)


def _is_file(action: argparse.Action) -> bool:
    return action.type is Path or action.metavar == "FILE"


def _command(**settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    settings |= {"cls": _HandedOn, "context_settings": _RAW, "add_help_option": False}
    given = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=_values)
    return lambda function: click.command(**settings)(given(function))


@_command(short_help="Run a real language model in PyTorch, Inductor and fusewheel.")
def demo(arguments: tuple[str, ...]) -> int:
    """A real language model in eager PyTorch, Inductor and fusewheel."""
    from fusewheel import demo as room

    return room.main(arguments)


@_command()
def doctor(arguments: tuple[str, ...]) -> int:
    """Test an operator of any package in every part of PyTorch."""
    from fusewheel.doctor import cli

    return cli.main(arguments)
