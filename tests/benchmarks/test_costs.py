"""What the cost rules go by is what the tables say."""

from __future__ import annotations

import pytest
from benchmarks.costs import FILE, PAGE, derive

PAGE_OF_ONE = """
<!-- bench linear avx2 -->
| layer | x | GFLOP/s |
| :-- | :-- | --: |
| F.linear fp32 | float32 | 10.5 |
| F.linear fp32 | float32 | 178.3 |
| F.linear bf16 | float32 | 500.0 |
<!-- end of bench linear avx2 -->
<!-- bench operators -->
| operator | case | dtype | threads | pass | ms | x eager | x Induct. | of roof |
| :-- | :-- | :-- | --: | :-- | --: | --: | --: | --: |
| gelu | 4096x4096 erf | float32 | 2 | fwd | 6.041 | 1.05 | 1.39 | 83% |
| gelu | 4096x4096 tanh | float32 | 2 | fwd | 5.000 | 2.74 | 0.24 | 84% |
| rope | 1x9+3x64 | float32 | 2 | fwd | 0.001 | 4.86 | 3.47 | 3% |
| rope | 256x9+3x64 | bfloat16 | 2 | fwd+bwd | 0.001 | 4.44 | 2.53 | 97% |
| rope | 256x9+3x64 | bfloat16 | 1 | fwd+bwd | 0.001 | 0.44 | 2.63 | 97% |
<!-- end of bench operators -->
<!-- bench calls -->
| operator | pass | torch.add us |
| :-- | :-- | --: |
| mul | no gradient | 0.9 |
| mul | fwd | 0.1 |
<!-- end of bench calls -->
<!-- bench rewrites -->
| operator | case | dtype | threads | pass | fused | PyTorch | fused, Ind. | Inductor |
| :-- | :-- | :-- | --: | :-- | --: | --: | --: | --: |
| rope | 1x9+3x64 | float32 | 2 | fwd | 4.0 | 8.0 | 4.0 | 3.0 |
<!-- end of bench rewrites -->
"""


def test_the_committed_file_is_that_of_the_committed_tables():
    assert derive(PAGE.read_text()) == FILE.read_text()


@pytest.fixture
def derived():
    found = {}
    exec(derive(PAGE_OF_ONE), found)
    return found


def test_the_machine(derived):
    # 128 MiB in 83 % of 6.041 ms.
    assert derived["COPIED"] == 2.7e10
    assert (derived["MULTIPLIED"], derived["CALLED"]) == (1.8e11, 9e-7)


def test_the_best_counts_and_within_a_graph_before_alone(derived):
    assert derived["RATIOS"] == {
        ("gelu", "float32", False): ((4096 * 4096, 1.05, 1.39),),
        ("gelu tanh", "float32", False): ((4096 * 4096, 2.74, 0.24),),
        ("rope", "bfloat16", True): ((256 * 9 * 64, 4.44, 2.63),),
        ("rope", "float32", False): ((9 * 64, 2.0, 0.75),),
    }


def test_a_page_without_the_tables_is_an_error():
    with pytest.raises((StopIteration, ValueError)):
        derive("# Benchmarks\n")
