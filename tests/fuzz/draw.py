"""Draws arguments: hypothesis chooses their structure, to shrink it, and a seed their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from oracle import DTYPES
from torch import Tensor

Strategy = Callable[["Draw"], tuple[Any, ...]]

# Around the lengths of vectors, blocks and panels of every level of instructions.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 257, 520)
# What lies between and around the elements of a tensor; there are neither such classes nor rows.
FOREIGN = {torch.int64: 2**40, torch.int32: 2**30, torch.int8: 85, torch.uint8: 85}


class Draw:
    """Draws what one call of an operator is given.

    Attributes:
        dtype: of its tensors.
        special: a number beside the ordinary ones that floating tensors may hold, if any.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._generator = torch.Generator()
        self.dtype: torch.dtype = self.choice(*DTYPES)
        self._generator.manual_seed(self.integer(0, 2**32 - 1))
        self.special = self._special() if self.rarely() else None

    def choice(self, *options: Any) -> Any:
        """One of them, the first the simplest."""
        return self._draw(st.sampled_from(options))

    def integer(self, least: int, most: int) -> int:
        """Both may come."""
        return self._draw(st.integers(least, most))

    def flag(self) -> bool:
        """Either."""
        return self._draw(st.booleans())

    def rarely(self) -> bool:
        """True once in four times."""
        return self.choice(False, False, False, True)

    def size(self, least: int = 0, most: int = SIZES[-1]) -> int:
        """Of a dimension."""
        few = st.integers(least, min(most, max(least, 6)))
        return self._draw(few | st.sampled_from([s for s in SIZES if least <= s <= most] or [most]))

    def shape(self, least: int = 0, most: int = 3, elements: int = 2048) -> tuple[int, ...]:
        """So many dimensions, and about so many elements at the most."""
        sizes: list[int] = []
        for _ in range(self.integer(least, most)):
            sizes.append(self.size(0 if self.rarely() else 1, max(1, elements)))
            elements //= max(1, sizes[-1])
        return tuple(self._draw(st.permutations(sizes)))

    def broadcast(self, count: int) -> list[tuple[int, ...]]:
        """Shapes that broadcast with each other."""
        whole = self.shape(elements=20_000)
        shapes = [
            tuple(1 if self.rarely() else size for size in whole[self.integer(0, len(whole)) :])
            if self.flag()
            else whole
            for _ in range(count)
        ]
        return shapes

    def tensor(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        scale: float | None = None,
        apart: bool = False,
    ) -> Tensor:
        """Normal deviates times `scale`, in memory of its own; `apart`, see `lay`."""
        scale = self.choice(1.0, 1.0, 1e-3, 20.0) if scale is None else scale
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64) * scale
        values = values.to(dtype or self.dtype)
        if self.special is not None and values.numel() and self.flag():
            for _ in range(self.integer(1, 2)):
                values.view(-1)[self.integer(0, values.numel() - 1)] = self.special
        return self.lay(values, apart)

    def integers(self, *shape: int, least: int, most: int, dtype: torch.dtype) -> Tensor:
        """Whole numbers, both ends included."""
        values = torch.randint(least, most + 1, shape, generator=self._generator)
        return self.lay(values.to(dtype))

    def optional(self, *shape: int, **options: Any) -> Tensor | None:
        """A tensor or none."""
        return self.tensor(*shape, **options) if self.flag() else None

    def stored(self) -> torch.dtype:
        """Of a weight, which need not have the dtype of what meets it."""
        return self.choice(self.dtype, *(d for d in DTYPES if d != torch.float64))

    def lay(self, values: Tensor, apart: bool = False) -> Tensor:
        """The same somewhere in memory. Where elements need not lie apart, some may be repeated in
        the place of others.
        """
        if self.flag():
            return values.contiguous()
        for dim in range(values.dim()):
            if not apart and values.shape[dim] > 1 and self.rarely():
                values = values.narrow(dim, 0, 1).expand(values.shape)
        repeated = [values.stride(d) == 0 and n > 1 for d, n in enumerate(values.shape)]
        strides = [0] * values.dim()
        reach = 1
        for dim in self._order(values.dim()):
            if repeated[dim]:
                continue
            if values.shape[dim] == 1:
                # No step is ever taken: it may be anything.
                strides[dim] = self.choice(reach, 0, 1, 5)
                continue
            strides[dim] = self.choice(reach, reach, 2 * reach, reach + 3)
            reach = strides[dim] * max(1, values.shape[dim])
        offset, behind = self.choice(0, 0, 1, 3), self.choice(0, 0, 2)
        foreign = FOREIGN.get(values.dtype, math.nan)
        base = torch.full((offset + reach + behind,), foreign, dtype=values.dtype)
        view = base.as_strided(values.shape, strides, offset)
        if values.numel():
            own = tuple(slice(0, 1) if again else slice(None) for again in repeated)
            view[own] = values[own]
        return view

    def _order(self, dims: int) -> list[int]:
        """Of the dimensions in memory, the innermost first."""
        plain = list(reversed(range(dims)))
        return self._draw(st.permutations(plain)) if dims > 1 and self.flag() else plain

    def _special(self) -> float:
        info = torch.finfo(self.dtype)
        # Sums of a few squares of the large one do not overflow what kernels compute in: where they
        # do, the order of the summands decides what comes out.
        large = 3e4 if self.dtype == torch.float16 else 1e15
        tiny = info.smallest_normal
        ends = (math.inf, -math.inf, math.nan, large, -large)
        return self.choice(0.0, -0.0, tiny, -tiny, tiny * info.eps, *ends)
