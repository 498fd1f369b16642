"""`fusewheel demo` and `fusewheel doctor`, which read their own options."""

from __future__ import annotations

import click

_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@click.command(
    context_settings=_RAW,
    add_help_option=False,
    short_help="Run a real language model in PyTorch, Inductor and fusewheel.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> int:
    """A real language model in eager PyTorch, Inductor and fusewheel."""
    from fusewheel import demo as room

    return room.main(arguments)


@click.command(context_settings=_RAW, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def doctor(arguments: tuple[str, ...]) -> int:
    """Test an operator of any package in every part of PyTorch."""
    from fusewheel.doctor import cli

    return cli.main(arguments)
