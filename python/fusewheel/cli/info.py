"""`fusewheel info`: what one writes into a report of a bug."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass

import click

from fusewheel._core.report import BaseReport
from fusewheel._core.show import show

PACKAGES = ("transformers", "accelerate", "peft", "gguf", "kernels", "xllamacpp", "numpy")


@dataclass(frozen=True)
class BackendInfo:
    """A kernel library.

    Attributes:
        name: of its entry point.
        version: of its wheel.
        device: whose kernels it has.
        loaded: whether it is in use.
        reason: why it is not; empty if it is.
    """

    name: str
    version: str
    device: str
    loaded: bool
    reason: str


@dataclass(frozen=True)
class Info(BaseReport):
    """What is installed.

    Attributes:
        fusewheel: its version.
        python: its version and implementation.
        torch: its version.
        system: the operating system and the processor's family.
        processor: the processor's name.
        instructions: the vector instructions that PyTorch uses.
        threads: PyTorch's threads.
        backends: the kernel libraries.
        packages: versions of other packages, of those that are installed.
        environment: the environment variables whose names begin with `FUSEWHEEL_`.
        operators: the names of all operators.
    """

    fusewheel: str
    python: str
    torch: str
    system: str
    processor: str
    instructions: str
    threads: int
    backends: tuple[BackendInfo, ...]
    packages: dict[str, str]
    environment: dict[str, str]
    operators: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"fusewheel {self.fusewheel}, torch {self.torch}, Python {self.python}",
            f"{self.system}; {self.processor}; {self.instructions}; {self.threads} threads",
        ]
        for backend in self.backends:
            state = "in use" if backend.loaded else f"not in use: {backend.reason}"
            lines.append(f"backend {backend.name} {backend.version} ({backend.device}): {state}")
        for kind, found in (("packages", self.packages), ("environment", self.environment)):
            if found:
                lines.append(f"{kind}: {', '.join(f'{k} {v}' for k, v in found.items())}")
        lines.append(f"operators: {', '.join(self.operators)}")
        return "\n".join(lines)


COLOURS = {r"\bin use$": "green", r"\bnot in use(?=:)": "red"}


def collect() -> Info:
    """The facts of this process."""
    import torch

    import fusewheel
    from fusewheel.demo.machine import hardware

    facts = hardware()
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Info(
        fusewheel=fusewheel.__version__,
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        torch=torch.__version__,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=facts["cpu"],
        instructions=facts["capability"],
        threads=facts["threads"],
        backends=tuple(
            BackendInfo(b.name, b.version, b.device, b.loaded, str(b.reason or ""))
            for b in fusewheel.backends()
        ),
        packages=versions,
        environment={k: v for k, v in sorted(os.environ.items()) if k.startswith("FUSEWHEEL_")},
        operators=tuple(operator.name for operator in fusewheel.ops.operators()),
    )


@click.command(short_help="Show versions, processor and kernels, for a bug report.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(as_json: bool = False) -> None:
    """Show versions, processor, kernel libraries and operators, for a bug report."""
    found = collect()
    show(found, as_json, COLOURS)
