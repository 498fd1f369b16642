"""Figures that are outside of their gates, as they were counted last.

A test fails if one becomes worse, and if one has become better: then write down the new figure, or
remove the line if the gate is passed.
"""

from __future__ import annotations

MISSED: dict[str, dict[str, float]] = {
    # Results are written by accesses of 8 bytes, and rows that wait in shared memory by two that
    # are 32 bytes apart. The gradients are three launches that read the same rows.
    "attention_backward: 4 + 1 heads x 4096 x 128": {
        "bytes": 1.56,
        "conflicts": 1.02,
        "wide": 0.84,
    },
    # A lane decodes 16 neighbouring weights (8 if they are floating), so lanes that stand side by
    # side read x 32 bytes apart, in two accesses. The first cache answers them. For one row that is
    # about 3 KB for each KB of the weight, and it has 4 to 10 times the rate of the memory; for 16
    # rows it may be what takes the time.
    "linear: 1 x 4096 x 4096": {"sectors": 1.5},
    "linear_int8: 1 x 4096 x 4096": {"sectors": 1.48},
    "linear_int4: 1 x 4096 x 4096": {"sectors": 1.64},
    "linear: 16 x 4096 x 4096": {"sectors": 1.94},
}

SPILLED = {
    # 128 and 184 bytes, on sm_100 alone: 32 rows of x and the sums of 32 columns.
    "linear_tiles<__nv_bfloat16, Int8Tiles, 2>",
    "linear_tiles<__nv_bfloat16, Int4Tiles, 2>",
    # A tile of scores and one of results, in the registers of 128 threads.
    "gradient<__nv_bfloat16, 0, 2>",
    "gradient<__nv_bfloat16, 1, 2>",
    "gradient<__nv_bfloat16, 2, 2>",
    # 40 bytes, on sm_100 alone.
    "attend_part<__nv_bfloat16, float, 4>",
    # 8 bytes, on sm_80 alone.
    "layer_norm_backward_rows<__nv_bfloat16, 8, LayerNormBackwardCall>",
}
"""Kernels for which 255 registers a thread, or the 64 of two blocks, are too few."""
