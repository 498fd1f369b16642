"""`python -m fusewheel`: what is installed, the operators, the demo and the doctor."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

import fusewheel
from fusewheel._torch.dispatcher import has_kernel


def main(arguments: Sequence[str]) -> int:
    """Runs a sub-command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fusewheel", description=fusewheel.__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("info", help="versions, backends and operators (the default)")
    commands.add_parser("operators", help="a table of the operators, as Markdown")
    commands.add_parser(
        "demo", help="a real language model in eager, Inductor and fusewheel", add_help=False
    )
    commands.add_parser(
        "doctor", help="test an operator of any package in every part of PyTorch", add_help=False
    )
    known, rest = parser.parse_known_args(arguments)
    if known.command == "demo":
        from fusewheel import demo

        return demo.main(rest)
    if known.command == "doctor":
        from fusewheel.doctor import cli

        return cli.main(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    print(_operators() if known.command == "operators" else _info())
    return 0


def _info() -> str:
    lines = [f"fusewheel {fusewheel.__version__}, torch {torch.__version__}"]
    for backend in fusewheel.backends():
        state = "in use" if backend.loaded else f"not in use: {backend.reason}"
        lines.append(f"backend {backend.name} {backend.version} ({backend.device}): {state}")
    names = (operator.name for operator in fusewheel.ops.operators())
    lines.append(f"operators: {', '.join(names)}")
    return "\n".join(lines)


def _operators() -> str:
    lines = ["| operator | what it computes | kernels |", "|---|---|---|"]
    for operator in fusewheel.ops.operators():
        if operator.function is None:
            continue
        summary = (operator.function.__doc__ or "").split("\n\n")[0]
        kernels = [key for key in ("CPU", "CUDA") if has_kernel(operator.overload.name(), key)]
        lines.append(f"| `{operator.name}` | {' '.join(summary.split())} | {', '.join(kernels)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
