"""The share of a multiprocessor's warps that each kernel must leave room for.

Registers and shared memory decide how many warps run at a time. While one waits for memory, the
others work. A kernel may declare a floor below `HALF`, with what it has instead of warps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cuda_emulated.counts.launches import Launch
from cuda_emulated.counts.resources import PROCESSORS, occupancy

HALF = 0.5
"""The floor of every kernel that declares none."""
EMPTY = 4
"""A kernel of so few registers does nothing: those for tensor cores, where there are none."""


class Floor(NamedTuple):
    """The least occupancy over all GPUs, and why so little is enough."""

    share: float
    why: str


_RESULTS = "The sums of a tile stay in registers, and the next tile is copied meanwhile."
_TILE = "A whole tile is copied at a time."
_CODES = "A lane reads the codes of its next 128 columns while it multiplies those before."
_WEIGHT = "A lane reads the weight of its next 64 columns while it multiplies those before."
_SUMS = "The sums of 32 rows stay in registers; while a warp reads, the others multiply."
_ROWS = "A lane has two vectors of the weight on their way, and a sum for each row of x."
_PRODUCTS = "A thread multiplies 32 times for 12 numbers it reads, and keeps 32 sums."
_BLOCKS = "A lane has three vectors of the weight on their way."

FLOORS: dict[str, Floor] = {
    **{
        f"{kernel}_tensor<{dtype}, {size}>": Floor(0.125, _RESULTS)
        for size in (128, 64)
        for kernel, dtype in (
            ("attend", "__nv_bfloat16"),
            ("attend", "__half"),
            ("gradients", "__nv_bfloat16"),
        )
    },
    **{
        f"attend<{dtype}, 2>": Floor(0.125, "The scores and sums of a tile stay in registers.")
        for dtype in ("__half", "float")
    },
    "gradients<float, 2>": Floor(0.125, "The scores and sums of a tile stay in registers."),
    "subtract<float>": Floor(0.375, "A slice of 32 columns of a whole tile is read at a time."),
    "subtract_tensor<__nv_bfloat16, 128>": Floor(0.25, _TILE),
    "subtract_tensor<__nv_bfloat16, 64>": Floor(20 / 48, _TILE),
    "attend_part<__nv_bfloat16, float, 4>": Floor(
        0.25, "A lane has two vectors on their way, and sums for four queries."
    ),
    "attend_tensor_part<__nv_bfloat16, 128>": Floor(
        8 / 48, "A warp has 4 KB on their way, of keys or of values."
    ),
    "attend_tensor_part<__nv_bfloat16, 64>": Floor(
        0.1875, "A warp has 2 KB on their way, of keys or of values."
    ),
    "few_rows<float, Floats<__nv_bfloat16>, 1, 2>": Floor(0.4375, _ROWS),
    "few_rows<__nv_bfloat16, Int8, 1, 2>": Floor(0.3125, _ROWS),
    "few_rows<__nv_bfloat16, Int4, 1, 2>": Floor(0.25, _ROWS),
    **{
        f"linear_parts<{weight}, {tiles}>": Floor(share, why)
        for weight, tiles, share, why in (
            ("__nv_bfloat16", 1, 8 / 48, _WEIGHT),
            ("__half", 1, 8 / 48, _WEIGHT),
            ("__nv_bfloat16", 2, 0.125, _SUMS),
        )
    },
    **{
        f"linear_tiles<__nv_bfloat16, Int{bits}Tiles, {tiles}>": Floor(0.125, why)
        for bits in (8, 4)
        for tiles, why in ((1, _CODES), (2, _SUMS))
    },
    **{
        f"experts_{layer}<__nv_bfloat16, DenseRows<__nv_bfloat16> >": Floor(
            0.25, "A lane has two vectors of each row of the weight on their way."
        )
        for layer in ("first", "last")
    },
    **{
        f"experts_{layer}<float, BlockRows<BlockDecoder<12> > >": Floor(0.25, _BLOCKS)
        for layer in ("first", "last")
    },
    **{
        f"grouped_products<float, BlockRows<BlockDecoder<{kind}> > >": Floor(0.375, _BLOCKS)
        for kind in (12, 14)
    },
    **{
        f"grouped_tensor_tiles<{rows}, TileSource<__nv_bfloat16, {along_inner}> >": Floor(
            1 / 6, _RESULTS
        )
        for rows in ("__nv_bfloat16", "__half")
        for along_inner in ("true", "false")
    },
    "grouped_tensor_gradients<__nv_bfloat16>": Floor(1 / 6, _RESULTS),
    **{
        f"grouped_tiles<float, TileSource<float, {along_inner}> >": Floor(0.25, _PRODUCTS)
        for along_inner in ("true", "false")
    },
}
"""By kernel, those under `HALF`. A test fails if one has become lower or higher."""


def shares(launch: Launch, by_capability: Mapping[str, list[int]]) -> dict[str, float]:
    """The occupancy on every GPU on which the kernel does something."""
    return {
        capability: occupancy(launch, registers, PROCESSORS[capability])
        for capability, (registers, _) in by_capability.items()
        if registers > EMPTY
    }


def floor_of(name: str) -> float:
    """The share that a kernel must leave room for."""
    return FLOORS[name].share if name in FLOORS else HALF


def too_few(name: str, launch: Launch, by_capability: Mapping[str, list[int]]) -> dict[str, float]:
    """The GPUs on which a kernel leaves room for fewer warps than it declares."""
    found = shares(launch, by_capability)
    return {gpu: share for gpu, share in found.items() if share < floor_of(name)}
