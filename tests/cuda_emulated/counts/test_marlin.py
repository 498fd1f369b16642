"""linear_int4 beside Marlin's scheme (Frantar et al., "MARLIN", 2024), counted the same way.

Marlin reads each 4-bit weight once, one scale of 16 bits for each 128 of them, and x, and writes y.
Its products are whole tiles: 16 rows for up to 16 rows of x.
"""

from __future__ import annotations

from cuda_emulated.counts.arguments import GROUP, WIDTH
from cuda_emulated.counts.cases import CASES
from cuda_emulated.counts.counted import counted

ROWS = 16
AT_MOST = 1.3


def test_sixteen_rows_move_and_multiply_little_more_than_marlin():
    found = counted(next(c for c in CASES if c.name == f"linear_int4: {ROWS} x {WIDTH} x {WIDTH}"))
    features = found.case.counted
    weights = features * WIDTH
    codes, scales = weights // 2, 2 * weights // GROUP
    x, y = 2 * ROWS * WIDTH, 2 * ROWS * features
    moved = sum(launch.moved for launch in found.launches)
    assert codes < moved <= AT_MOST * (codes + scales + x + y)
    products = sum(launch.products for launch in found.launches)
    assert ROWS * weights <= products <= AT_MOST * ROWS * weights
