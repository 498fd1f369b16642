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
    BlockKind = Literal[
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "IQ4_NL",
        "MXFP4",
        "NF4",
        "FP4",
        "FP8",
    ]
else:
    Approximate = Cast = Reduction = Activation = BlockKind = str
