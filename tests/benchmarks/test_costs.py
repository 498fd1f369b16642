"""The sizes that patterns declare are those that the tables show."""

from __future__ import annotations

import pytest
from benchmarks.costs import PAGE, derive
from fusewheel.compiler.ir.pattern import PaysAbove
from fusewheel.compiler.patterns import all_patterns

INSIDE = """
<!-- bench rewrites -->
| operator | case | dtype | threads | pass | fused | PyTorch | fused, Ind. | Inductor |
| :-- | :-- | :-- | --: | :-- | --: | --: | --: | --: |
| rope | 1x9+3x64 | float32 | 2 | fwd | 4.0 | 8.0 | 4.0 | 3.0 |
| rope | 1x9+3x64 | bfloat16 | 2 | fwd | 4.0 | 8.0 | 4.0 | 4.4 |
| gelu_packed | 8x10 | float32 | 2 | fwd+bwd | 4.0 | 2.0 | 4.0 | 9.0 |
<!-- end of bench rewrites -->
"""
ALONE = """
<!-- bench operators -->
| operator | case | dtype | threads | pass | x eager | x Induct. |
| :-- | :-- | :-- | --: | :-- | --: | --: |
| gelu | 64x64 erf | float32 | 2 | fwd | 1.05 | 0.90 |
| gelu | 64x64 tanh | float32 | 2 | fwd | 2.74 | 0.80 |
| gelu | 256x256 erf | float32 | 2 | fwd | 0.91 | 0.70 |
| gelu | 256x256 erf | float32 | 1 | fwd | 1.10 | 0.96 |
| gelu | 512x512 erf | float32 | 2 | fwd | 1.00 | 1.10 |
| gelu | 64x64 erf | float32 | 2 | fwd+bwd | 0.90 | 1.10 |
| gelu | 512x512 erf | float32 | 2 | fwd+bwd | 1.10 | 1.10 |
| rope | 1x9+3x64 | float32 | 2 | fwd | 0.01 | 0.01 |
| rope | 1x9+3x64 | float32 | 1 | fwd+bwd | 0.01 | 0.01 |
| rope | 256x9+3x64 | float32 | 1 | fwd | 4.44 | 2.53 |
<!-- end of bench operators -->
"""


def test_patterns_declare_what_the_tables_show():
    found = derive(PAGE.read_text())
    declared = {p.operator: p.pays_above for p in all_patterns()}
    shown = {f"fusewheel::{name}": sizes for name, sizes in found.items()}
    assert {n: sizes for n, sizes in declared.items() if n in shown} == {
        n: sizes for n, sizes in shown.items() if n in declared
    }
    # Of these there is no such table, and they have rules of their own or none.
    assert {n for n in declared if n.startswith("fusewheel::")} - set(shown) == {
        "fusewheel::attention",
        "fusewheel::grouped_linear",
        "fusewheel::linear",
        "fusewheel::linear_cross_entropy",
    }
    assert set(declared.values()) > {PaysAbove()}


def test_sizes_of_a_page():
    """Up to the largest size with a loss in the mean; within a graph before alone."""
    assert derive(INSIDE + ALONE) == {
        "gelu": PaysAbove(inductor=256 * 256, none_training=64 * 64),
        "gelu_packed": PaysAbove(none_training=2 * 80),
        "rope": PaysAbove(inductor=9 * 64),
    }


def test_a_loss_behind_a_gain_is_an_error():
    with pytest.raises(ValueError, match="gelu is slower at a size and faster at a smaller one"):
        derive(INSIDE + ALONE.replace("| 1.00 | 1.10 |", "| 0.90 | 1.10 |"))


def test_a_page_without_the_tables_is_an_error():
    with pytest.raises(ValueError, match="no table in a section 'rewrites'"):
        derive("# Benchmarks\n")
    with pytest.raises(ValueError, match="no table in a section 'operators'"):
        derive(INSIDE)
