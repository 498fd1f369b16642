"""The command line: `fusewheel`, or `python -m fusewheel`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from click.shell_completion import get_completion_class

from fusewheel._core.version import __version__
from fusewheel.cli import bench, chat, hand_on, info, model, operators

_EXITS = """\b
Exit status:
  0    it worked
  1    what was asked for failed: an operator, a model, a comparison
  2    the command line is wrong, or something is missing that it needs
  130  interrupted
"""


_COMPLETION = """Print a script that completes commands and options in a shell.

\b
bash:  eval "$(fusewheel completion bash)"       in ~/.bashrc
zsh:   eval "$(fusewheel completion zsh)"        in ~/.zshrc
fish:  fusewheel completion fish | source        in ~/.config/fish/config.fish
"""


class _Commands(click.Group):
    """Commands in the order in which they were added, not in that of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    epilog=_EXITS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", message="fusewheel %(version)s")
@click.pass_context
def _fusewheel(ctx: click.Context) -> None:
    """Fused PyTorch operators that work everywhere PyTorch does.

    Without a command it prints what `fusewheel info` does.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(info.info)


@click.command(help=_COMPLETION)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options."""
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(_fusewheel, {}, "fusewheel", "_FUSEWHEEL_COMPLETE").source())


for _command in (
    *(info.info, operators.operators, hand_on.demo, chat.chat, bench.bench, hand_on.doctor),
    *(model.explain, model.quantize, completion),
):
    _fusewheel.add_command(_command)


def main(arguments: Sequence[str] | None = None, name: str = "fusewheel") -> int:
    """Runs a command; returns the exit status.

    Args:
        arguments: those of the command line; default None, which means those of this process.
        name: what the help calls the program; default "fusewheel".
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        result = _fusewheel.main(given, name, "_FUSEWHEEL_COMPLETE", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except SystemExit as stop:  # of `doctor` and `demo`, and of the completion
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return result if isinstance(result, int) else 0
