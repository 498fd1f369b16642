"""The words that some arguments choose from, for type checkers.

TorchScript compiles functions with these arguments and knows no ``Literal``: it sees strings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    Approximate = Literal["none", "tanh"]
    Cast = Literal["torch", "llama", "gemma"]
    Reduction = Literal["none", "mean", "sum"]
    Activation = Literal["silu", "gelu", "gelu_tanh"]
else:
    Approximate = Cast = Reduction = Activation = str
