"""What is tried: the packages, and an operator with its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tried:
    """An operator of another package.

    Attributes:
        op: the overload.
        samples: tuples of its arguments.
        fixed: the names of arguments whose values are positions or the like.
    """

    op: Any
    samples: list[tuple[Any, ...]]
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Package:
    """Another package, as a package index has it.

    Attributes:
        requirement: what pip is asked for.
        needs: what else it imports; pip installs no dependencies, which might change torch.
    """

    requirement: str
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name on the page, and that of its file in `samples/`."""
        return self.requirement.partition("=")[0]

    @property
    def module(self) -> str:
        """The module with its samples."""
        return f"samples.{self.name.replace('-', '_')}"


PACKAGES = (
    Package("torchvision===0.28.0", ("pillow",)),
    Package("torchaudio===2.11.0"),
    Package("torchao==0.18.0"),
    Package("bitsandbytes==0.50.2", ("packaging",)),
    Package("fbgemm-gpu-cpu==1.8.0"),
    Package("sphericart-torch==2.0.4"),
    Package("xformers==0.0.35"),
    Package("pyg-lib"),
)
