"""`linear_cross_entropy` computes logits for a chunk of rows at a time."""

import fusewheel
import torch
from torch.profiler import ProfilerActivity, profile

ROWS = 2**14


def test_chunks_are_as_large_as_memory_allows():
    """An eighth of all rows: their logits are an eighth of what all logits would take."""
    x, weight = torch.randn(ROWS, 2), torch.randn(3, 2)
    target = torch.randint(3, (ROWS,))
    with profile(activities=[ProfilerActivity.CPU]) as calls:
        fusewheel.linear_cross_entropy(x, weight, target)
    products = [event.count for event in calls.key_averages() if event.key == "aten::mm"]
    assert products == [8]
