"""`fusewheel operators`: the operators that programs call."""

from __future__ import annotations

from dataclasses import dataclass

import click

from fusewheel._core.report import BaseReport


@dataclass(frozen=True)
class OperatorInfo:
    """An operator.

    Attributes:
        name: of the function in `fusewheel`, and of the operator in `torch.ops.fusewheel`.
        summary: what it computes.
        schema: of the operator.
        kernels: the devices that have a kernel in this process.
    """

    name: str
    summary: str
    schema: str
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class Operators(BaseReport):
    """All operators with a public function.

    Attributes:
        operators: by name.
    """

    operators: tuple[OperatorInfo, ...]

    def __str__(self) -> str:
        lines = ["| operator | what it computes | kernels |", "|---|---|---|"]
        lines += [f"| `{o.name}` | {o.summary} | {', '.join(o.kernels)} |" for o in self.operators]
        return "\n".join(lines)


def collect() -> Operators:
    """The operators of this process."""
    import fusewheel
    from fusewheel._torch.dispatcher import has_kernel

    found = []
    for operator in fusewheel.ops.operators():
        if operator.function is None:
            continue
        summary = (operator.function.__doc__ or "").split("\n\n")[0]
        kernels = tuple(k for k in ("CPU", "CUDA") if has_kernel(operator.overload.name(), k))
        schema = str(operator.overload._schema)
        found.append(OperatorInfo(operator.name, " ".join(summary.split()), schema, kernels))
    return Operators(tuple(found))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def operators(as_json: bool) -> None:
    """Print a table of the operators, as Markdown."""
    found = collect()
    click.echo(found.to_json() if as_json else str(found))
